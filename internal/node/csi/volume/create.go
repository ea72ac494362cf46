package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Create makes a volume. If a volume of this name exists, Create returns it if it fits spec, and
// ErrExists otherwise. It first removes what an interrupted call has left.
func (s *Store) Create(ctx context.Context, name string, spec Spec) (*Volume, error) {
	spec.Base = cmp.Or(spec.Base, s.base)
	return s.create(ctx, name, spec.Source, func(source *Volume) (*Volume, error) {
		return s.plan(spec, source)
	}, func(there *Volume) error { return spec.fits(there) }, nothing)
}

// nothing is for volumes that begin as make makes them.
func nothing(*Volume) error { return nil }

// Snapshot makes a snapshot of a volume, in the volume's base directory. If a snapshot of this name
// exists, Snapshot returns it if it is of that volume, and ErrExists otherwise.
func (s *Store) Snapshot(ctx context.Context, name, of string) (*Volume, error) {
	return s.create(ctx, name, of, func(source *Volume) (*Volume, error) {
		if source.Snapshot {
			return nil, fmt.Errorf("%s is a snapshot: %w", of, ErrNotFound)
		}
		return source.snapshot(), nil
	}, func(there *Volume) error {
		if !there.Snapshot || there.Source != of {
			return fmt.Errorf("%s, made from %s: %w", name, there.Source, ErrExists)
		}
		return nil
	}, nothing)
}

// snapshot returns the record of a copy of the volume.
func (v *Volume) snapshot() *Volume {
	return &Volume{Snapshot: true, Base: v.Base, Kind: v.Kind, FSType: v.FSType, Block: v.Block, Size: v.Size}
}

// create makes the volume that plan describes, as a copy of from unless that is empty. fill may write into it before it is complete.
func (s *Store) create(ctx context.Context, name, from string, plan func(source *Volume) (*Volume, error), fits, fill func(*Volume) error) (*Volume, error) {
	unlock, err := s.locks.write(name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	there, err := s.load(name)
	if err == nil && there.State == Ready {
		return there, fits(there)
	}
	if err == nil {
		err = s.discard(ctx, there)
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	var source *Volume
	if from != "" {
		release, err := s.locks.read(from)
		if err != nil {
			return nil, err
		}
		defer release()
		if source, err = s.Get(from); err != nil {
			return nil, err
		}
	}
	v, err := plan(source)
	if err != nil {
		return nil, err
	}
	v.Name, v.Source, v.State, v.Created = name, from, Making, time.Now().UTC()
	if err := s.place(v, source); err != nil {
		return nil, err
	}
	s.onStep("recorded")
	err = s.make(ctx, v, source)
	if err == nil {
		err = fill(v)
	}
	if err != nil {
		return nil, errors.Join(err, s.discard(context.WithoutCancel(ctx), v))
	}
	s.onStep("made")
	v.State, v.Needs = Ready, 0
	if err := s.save(v); err != nil {
		return nil, errors.Join(err, s.discard(context.WithoutCancel(ctx), v))
	}
	s.onStep("ready")
	return v, nil
}

// place records a volume that is about to be made. It returns ErrNoSpace if there is not enough space.
func (s *Store) place(v, source *Volume) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	room, err := s.room(v.Base, v.Name)
	if err != nil {
		return err
	}
	needed, err := v.needs(source)
	if err != nil {
		return err
	}
	if needed > room {
		if v.Snapshot {
			return fmt.Errorf("%w to copy %s: %s are needed in %s, and %s are free", ErrNoSpace, source.Name, bytes(needed), v.Base, bytes(room))
		}
		return fmt.Errorf("%w for %s in %s: the largest possible volume has %s", ErrNoSpace, bytes(needed), v.Base, bytes(room))
	}
	if v.Kind == Quota {
		if v.Project, err = s.freeProject(v.Base); err != nil {
			return err
		}
	}
	if v.Snapshot {
		v.Needs = needed
	}
	return s.save(v)
}

// needs returns how many bytes must be free for a volume: all that it may take, or 0 if its size is
// not limited.
func (v *Volume) needs(source *Volume) (int64, error) {
	switch {
	case v.Kind == Directory:
		return 0, nil
	case !v.Snapshot:
		return v.Size, nil
	case v.Kind == Quota:
		return quotaUsed(source.Base, source.Project)
	default:
		return dataBytes(source.image())
	}
}

// make makes the folder of a volume and its contents.
func (s *Store) make(ctx context.Context, v, source *Volume) error {
	// Only root may enter the folder. Pods see only what is below it.
	if err := os.Mkdir(v.path(), 0o700); err != nil {
		return fmt.Errorf("make volume: %w", datadir.Explain(noSpace(err)))
	}
	s.onStep("folder made")
	var err error
	switch {
	case v.Kind != Image:
		err = s.makeDirectory(ctx, v, source)
	case source != nil:
		overwrite(v.path())
		err = s.copyImage(ctx, v, source)
	default:
		overwrite(v.path())
		err = s.makeImage(ctx, v)
	}
	if err != nil {
		return err
	}
	return errors.Join(datadir.SyncFolder(v.path()), datadir.SyncFolder(v.Base))
}

// overwrite makes btrfs write images in place. Otherwise btrfs takes new blocks for each write, even
// if the image is allocated. Other file systems do not have this flag.
func overwrite(folder string) {
	file, err := os.Open(folder)
	if err != nil {
		return
	}
	defer file.Close()
	const noCopyOnWrite = 0x800000 // FS_NOCOW_FL of linux/fs.h
	if flags, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS); err == nil {
		_ = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(flags|noCopyOnWrite))
	}
}

// makeDirectory makes the directory that pods use, and copies the source's data if there is one.
func (s *Store) makeDirectory(ctx context.Context, v, source *Volume) error {
	if err := makeData(v.path()); err != nil {
		return err
	}
	if v.Kind == Quota {
		if err := errors.Join(setProject(v.data(), v.Project), setQuota(v.Base, v.Project, v.Size)); err != nil {
			return err
		}
	}
	s.onStep("directory made")
	if source == nil {
		return nil
	}
	return s.copyTree(ctx, v, source)
}

// makeData makes the directory `data` in a folder if it is missing. Pods see it as the root of their
// volume. Everybody may write to it, as in k3s, so a pod that does not run as root needs no fsGroup.
// The folder around it keeps everybody out except the pods that use the volume.
func makeData(folder string) error {
	path, temporary := folder+"/data", folder+"/.data"
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	if err := os.Mkdir(temporary, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make directory: %w", datadir.Explain(noSpace(err)))
	}
	if err := os.Chmod(temporary, 0o777); err != nil { // Mkdir applies the umask
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return datadir.SyncFolder(folder)
}
