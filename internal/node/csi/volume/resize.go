package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Expand makes a volume at least size bytes large, even while pods use it, and returns its new size.
// It saves the record last: after an interruption the call is repeated and finds that the file is
// larger already.
func (s *Store) Expand(name string, size, limit int64) (int64, error) {
	v, unlock, err := s.take(name)
	if err != nil {
		return 0, err
	}
	defer unlock()
	if err := v.isThere(); err != nil {
		return 0, err
	}
	if size, err = roundUp(size); err != nil {
		return 0, err
	}
	if limit != 0 && max(size, v.Size) > limit {
		return 0, fmt.Errorf("%w: the volume would have %s, and the limit is %s", ErrSize, bytes(max(size, v.Size)), bytes(limit))
	}
	if size <= v.Size {
		return v.Size, nil
	}
	if err := s.enlarge(v, size); err != nil {
		return 0, err
	}
	s.onStep("enlarged")
	if v.Kind == Image {
		if err := v.tell(); err != nil {
			return 0, err
		}
	}
	s.onStep("grown")
	v.Size = size
	return size, s.save(v)
}

// Reserve takes the disk space that a volume needs to become at least size bytes large. The volume's
// file system grows with Expand or, if it cannot grow while it is mounted, when it is staged next.
func (s *Store) Reserve(name string, size int64) error {
	v, unlock, err := s.take(name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.isThere(); err != nil || v.Kind != Image {
		return err // a quota has nothing to allocate
	}
	if size, err = roundUp(size); err != nil || size <= v.Size {
		return err
	}
	return s.enlarge(v, size)
}

// enlarge takes the space for size bytes. It returns ErrNoSpace if there is not enough.
func (s *Store) enlarge(v *Volume, size int64) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	room, err := s.room(v.Base, "")
	if err != nil {
		return err
	}
	switch v.Kind {
	case Image:
		file, err := os.OpenFile(v.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("open image: %w", err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil || info.Size() >= size {
			return err
		}
		if more := size - info.Size(); more > room {
			return fmt.Errorf("%w to grow by %s in %s: the largest possible size is %s", ErrNoSpace, bytes(more), v.Base, bytes(info.Size()+room))
		}
		return allocate(file, size)
	case Quota:
		if more := size - v.Size; more > room {
			return fmt.Errorf("%w to grow by %s in %s: the largest possible size is %s", ErrNoSpace, bytes(more), v.Base, bytes(v.Size+room))
		}
		return setQuota(v.Base, v.Project, size)
	}
	return nil
}

// tell makes the device and its file system as large as the image. If the image is not attached, the
// next Stage does that.
func (v *Volume) tell() error {
	dev, err := attached(v.image())
	if dev == nil {
		return err
	}
	defer dev.Close()
	if err := resized(dev); err != nil || v.Block {
		return err
	}
	path, err := mountedAt(dev)
	if path == "" {
		return err
	}
	if err := growMounted(v.FSType, path, dev); err != nil {
		return err
	}
	_ = v.refill() // as in Stage
	return nil
}

// isThere returns an error with advice if a volume's files are missing.
func (v *Volume) isThere() error {
	path := v.data()
	if v.Kind == Image {
		path = v.image()
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist: mount its disk", ErrMissing, path)
	} else if err != nil {
		return fmt.Errorf("look at volume: %w", err)
	}
	return nil
}

// take returns a volume that is complete, and locks it. For a snapshot it returns ErrNotFound.
func (s *Store) take(name string) (*Volume, func(), error) {
	if err := CheckName(name); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	unlock, err := s.locks.write(name)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.Get(name)
	if err == nil && v.Snapshot {
		err = fmt.Errorf("%s is a snapshot: %w", name, ErrNotFound)
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return v, unlock, nil
}
