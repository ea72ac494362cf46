package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Delete removes a volume or a snapshot and frees its space. It returns nil if there is none of this
// name, and ErrInUse if a pod still uses the volume.
func (s *Store) Delete(ctx context.Context, name string, snapshot bool) error {
	if CheckName(name) != nil {
		return nil // a volume of this name cannot exist
	}
	unlock, err := s.locks.write(name)
	if err != nil {
		return err
	}
	defer unlock()
	v, err := s.load(name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || v.Snapshot != snapshot {
		return err
	}
	if err := v.abandon(); err != nil {
		return err
	}
	s.onStep("abandoned")
	used, err := s.InUse(v)
	if err != nil {
		return err
	}
	if used {
		return fmt.Errorf("%s: %w by a pod: delete the pod first", name, ErrInUse)
	}
	return s.discard(ctx, v)
}

// abandon unmounts an image that no pod uses.
func (v *Volume) abandon() error {
	if v.Kind != Image || v.Block {
		return nil
	}
	dev, err := attached(v.image())
	if dev == nil {
		return err
	}
	defer dev.Close()
	return v.unmountUnused(dev)
}

// discard removes the files of a volume, and then its record.
func (s *Store) discard(ctx context.Context, v *Volume) error {
	if v.Block {
		if err := v.letGo(); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(v.path()); errors.Is(err, fs.ErrNotExist) && v.State == Ready {
		return fmt.Errorf("%w: %s does not exist: mount its disk or, if the disk is lost, remove %s", ErrMissing, v.path(), s.RecordFile(v.Name))
	}
	v.State = Deleting
	// On a full disk the record is not written. If kedge crashes, the caller calls Delete again.
	if err := s.save(v); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	s.onStep("condemned")
	if err := removeFolder(ctx, v.Base, v.Name); err != nil {
		return err
	}
	s.onStep("removed")
	if v.Kind == Quota && enforcesProjects(v.Base) {
		if err := setQuota(v.Base, v.Project, 0); err != nil {
			return err
		}
	}
	return s.forget(v.Name)
}

// Thaw thaws the file systems that a kedge killed in the middle of a snapshot has left frozen, so
// that their pods can write again. It must be called before anything else.
func (s *Store) Thaw() error {
	volumes, err := s.List()
	faults := []error{err}
	for _, v := range volumes {
		if v.Kind == Image && !v.Block {
			faults = append(faults, v.thaw())
		}
	}
	return errors.Join(faults...)
}

func (v *Volume) thaw() error {
	dev, err := attached(v.image())
	if dev == nil {
		return err
	}
	defer dev.Close()
	root, err := openMounted(dev)
	if root == nil {
		return err
	}
	defer root.Close()
	if err := thawFS(root); !errors.Is(err, unix.EINVAL) { // EINVAL: it is not frozen
		return err
	}
	return nil
}

// Recover removes what interrupted calls have left half made or half removed.
func (s *Store) Recover(ctx context.Context) error {
	volumes, err := s.List()
	faults := []error{err}
	for _, v := range volumes {
		if v.State == Ready {
			continue
		}
		unlock, err := s.locks.write(v.Name)
		if err != nil {
			continue // another call works on it
		}
		if v, err = s.load(v.Name); err == nil && v.State != Ready {
			faults = append(faults, s.discard(ctx, v))
		}
		unlock()
	}
	return errors.Join(append(faults, s.removeTemporaries())...)
}

// removeTemporaries removes records that were not written completely.
func (s *Store) removeTemporaries() error {
	names, err := filepath.Glob(filepath.Join(s.base, recordFolder, ".*"+recordSuffix+".tmp"))
	faults := []error{err}
	for _, path := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "."), recordSuffix+".tmp")
		unlock, err := s.locks.write(name)
		if err != nil {
			continue // another call writes it
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, err)
		}
		unlock()
	}
	return errors.Join(faults...)
}

// Leftover is a folder or record of volumes that a user must repair or remove.
type Leftover struct {
	// Path is the folder.
	Path string
	// Reason says what is wrong and what to do.
	Reason string
}

// Leftovers returns folders without a record, and records without a folder.
func (s *Store) Leftovers() ([]Leftover, error) {
	volumes, err := s.List()
	known := map[string]bool{}
	bases := map[string]bool{s.base: true}
	var found []Leftover
	for _, v := range volumes {
		bases[v.Base], known[v.path()] = true, true
		if unlock, err := s.locks.read(v.Name); err != nil {
			continue // another call works on it
		} else {
			unlock()
		}
		if v.State != Ready {
			found = append(found, Leftover{v.path(), "was not completed: the next start of kedge removes it"})
		} else if err := v.isThere(); err != nil {
			found = append(found, Leftover{v.path(), err.Error()})
		}
	}
	for base := range bases {
		entries, fault := os.ReadDir(base)
		if fault != nil && !errors.Is(fault, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("list volumes: %w", datadir.Explain(fault)))
		}
		for _, entry := range entries {
			path := filepath.Join(base, entry.Name())
			named := strings.HasPrefix(entry.Name(), "pvc-") || strings.HasPrefix(entry.Name(), "snapshot-")
			if named && !known[path] {
				found = append(found, Leftover{path, "has no record in kedge: remove it if you do not need its data"})
			}
		}
	}
	return found, err
}
