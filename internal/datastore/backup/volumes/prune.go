package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
)

// Keep says how long the past is kept: all of it for All, and after that one state of each day until Daily.
type Keep struct{ All, Daily time.Duration }

// Volumes returns the names of the volumes that have versions or pieces.
func (s *Store) Volumes(ctx context.Context) ([]string, error) {
	names, err := s.place.Names(ctx, root)
	for i := range names {
		names[i] = strings.TrimSuffix(names[i], "/")
	}
	return names, err
}

// Prune removes the versions of a volume that need not be kept, and the pieces that no other version has. The newest version stays as long as the volume is
// in use. Nothing may be saved meanwhile. Prune returns the names of the versions that are left.
func (s *Store) Prune(ctx context.Context, volume string, used bool, keep Keep, now time.Time) ([]string, error) {
	versions, err := s.place.Names(ctx, path.Join(folder(volume), versionsFolder))
	if err != nil {
		return nil, err
	}
	var left []string
	day := ""
	for i, name := range slices.Backward(versions) {
		at, err := time.Parse(versionTime, strings.SplitN(name, "-", 2)[0])
		if err != nil {
			continue // it is not a file of kedge's
		}
		age, date := now.Sub(at), at.Format(time.DateOnly)
		if age < keep.All || age < keep.Daily && date != day || used && i == len(versions)-1 {
			left, day = append(left, name), date
			continue
		}
		if err := s.place.Remove(ctx, s.versionFile(volume, name)); err != nil {
			return nil, err
		}
	}
	return left, s.sweep(ctx, volume, left)
}

// sweep removes the pieces of a volume that none of the versions has.
func (s *Store) sweep(ctx context.Context, volume string, versions []string) error {
	used := map[string]bool{}
	for _, name := range versions {
		text, err := s.place.Read(ctx, s.versionFile(volume, name))
		if errors.Is(err, place.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		var v Version
		if err := json.Unmarshal(text, &v); err != nil {
			return fmt.Errorf("read %s of the backup: %w", s.versionFile(volume, name), err)
		}
		for _, piece := range v.Pieces {
			used[piece] = true
		}
	}
	return s.eachPiece(ctx, volume, func(name string) error {
		if used[name] {
			return nil
		}
		return s.place.Remove(ctx, pieceFile(volume, name))
	})
}
