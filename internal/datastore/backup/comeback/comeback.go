// Package comeback turns an empty machine into the server whose backup it reads. The command `kedge restore` calls it.
package comeback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/rebuild"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

// Backup is one that was opened with its key.
type Backup struct {
	key   *chain.RecoveryKey
	place place.Place
	log   *rebuild.Log
}

// Open opens the backup at a place.
func Open(ctx context.Context, location string, settings config.S3, key *chain.RecoveryKey) (*Backup, error) {
	at, err := place.Open(ctx, location, settings, nil)
	if err != nil {
		return nil, err
	}
	log, err := chain.Open(ctx, at, key.Root())
	if err != nil {
		return nil, err
	}
	if len(log.Appointments()) == 0 {
		return nil, fmt.Errorf("%s has no backup: check the place", at)
	}
	return &Backup{key, at, &rebuild.Log{Chain: log, Open: key.Open}}, nil
}

// State is what a backup has of a point in time.
type State struct {
	*rebuild.State
	About  backup.About
	backup *Backup
}

// Load reads and verifies the state of a point. The caller closes it. The folder has to have room for all objects.
func (b *Backup) Load(ctx context.Context, at rebuild.At, folder string, progress rebuild.Progress) (*State, error) {
	point, err := b.log.Find(ctx, at)
	if err != nil {
		return nil, err
	}
	state, err := b.log.Load(ctx, point, folder, progress)
	if err != nil {
		return nil, err
	}
	s := &State{State: state, backup: b}
	if err := json.Unmarshal(state.Files[backup.AboutName].Content, &s.About); err != nil {
		return nil, errors.Join(fmt.Errorf("the backup does not say of which server it is: %w", err), state.Close())
	}
	return s, nil
}

// String describes the state to a person.
func (s *State) String() string {
	return fmt.Sprintf("the cluster of server %s (kedge %s) as of %s, revision %d: %d objects and %d files",
		s.About.Node, s.About.Kedge, s.Time.Local().Format(time.DateTime), s.Revision, s.Keys(), len(s.Files))
}

// WriteFiles writes the files of one of the server's folders, except those that are there already. It returns the paths of those that it left as they
// are, and that differ.
func (s *State) WriteFiles(name, folder string) (left []string, err error) {
	for _, path := range slices.Sorted(maps.Keys(s.Files)) {
		inside, ok := strings.CutPrefix(path, name+"/")
		if !ok {
			continue
		}
		if !filepath.IsLocal(inside) || filepath.Clean(inside) != inside {
			return nil, fmt.Errorf("the backup has a file of an impossible name, %q", path)
		}
		file, to := s.Files[path], filepath.Join(folder, filepath.FromSlash(inside))
		there, err := os.ReadFile(to)
		switch {
		case err == nil && string(there) != string(file.Content):
			left = append(left, to)
			continue
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read file: %w", err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return nil, fmt.Errorf("make folder: %w", datadir.Explain(err))
		}
		if err := datadir.WriteFile(to, file.Content, file.Mode); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// Restore replaces what the server has stored by the state, and lets this machine write the backup. The one before can no longer do that. The contents of the
// volumes come back when the server runs.
func (s *State) Restore(ctx context.Context, cfg snapshot.Config, volumes []*Volume) (*snapshot.Restored, error) {
	return s.into(ctx, cfg, func() error {
		if err := leaveVolumes(cfg.Dir, volumes); err != nil {
			return err
		}
		return s.succeed(ctx, cfg.Dir)
	})
}

// Copy replaces what a server has stored by the state. It changes nothing of the backup.
func (s *State) Copy(ctx context.Context, cfg snapshot.Config) error {
	_, err := s.into(ctx, cfg, func() error { return nil })
	return err
}

// into puts the state into a server. It calls before when everything is read, and nothing has been replaced.
func (s *State) into(ctx context.Context, cfg snapshot.Config, before func() error) (*snapshot.Restored, error) {
	if err := os.MkdirAll(cfg.Dir.Server(), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of the server: %w", datadir.Explain(err))
	}
	secrets := map[string][]byte{}
	for name, file := range s.Files {
		if inside, ok := strings.CutPrefix(name, backup.SecretsFolder+"/"); ok {
			secrets[inside] = file.Content
		}
	}
	token := string(s.Files[backup.TokenName].Content)
	file := filepath.Join(cfg.Dir.Server(), "from-backup.zst")
	defer os.Remove(file)
	_ = os.Remove(file) // an interrupted restore may have left it
	err := snapshot.Assemble(ctx, cfg, file, snapshot.Source{
		Kedge: s.About.Kedge, Node: s.About.Node, Time: s.Time, Secrets: secrets, Token: token, Export: s.Export,
	})
	if err != nil {
		return nil, err
	}
	if err := before(); err != nil {
		return nil, err
	}
	return snapshot.Restore(ctx, cfg, file, token)
}

// succeed makes this machine the writer, in the place of the one before. The server takes the key from the file when it has started.
func (s *State) succeed(ctx context.Context, dir datadir.Dir) error {
	log := s.backup.log.Chain
	tail, err := log.Tail(ctx)
	if err != nil {
		return err
	}
	writer, err := s.backup.key.Appoint(len(log.Appointments())+1, tail, time.Now())
	if err != nil {
		return err
	}
	if err := log.Admit(ctx, writer); err != nil {
		return fmt.Errorf("%w. This machine must be able to write to the backup, so that the one before no longer can", err)
	}
	text, err := json.Marshal(writer)
	if err != nil {
		return fmt.Errorf("encode the key of the backup: %w", err)
	}
	return datadir.WriteFile(dir.BackupWriter(), text, 0o600)
}
