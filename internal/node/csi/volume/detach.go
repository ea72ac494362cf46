package volume

import (
	"errors"
	"io/fs"
)

// Detach detaches all images. The kernel has already detached those that were mounted when they were
// unmounted, but not raw block volumes.
func (s *Store) Detach() error {
	volumes, err := s.List()
	faults := []error{err}
	for _, v := range volumes {
		if v.Kind != Image {
			continue
		}
		dev, err := attached(v.image())
		if dev == nil {
			if !errors.Is(err, fs.ErrNotExist) {
				faults = append(faults, err)
			}
			continue
		}
		faults = append(faults, detach(dev), dev.Close())
	}
	return errors.Join(faults...)
}
