package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Publication says where and how a pod gets a volume.
type Publication struct {
	Target string
	// Options are the mount options of the storage class.
	Options  []string
	ReadOnly bool
	// Single refuses the volume to a second pod.
	Single bool
}

// Publish mounts a staged volume at the pod's target. It returns ErrNotStaged if Stage was not called.
func (s *Store) Publish(name string, p Publication) error {
	v, unlock, err := s.take(name)
	if err != nil {
		return err
	}
	defer unlock()
	source, dev, err := v.source()
	if err != nil {
		return err
	}
	if dev != nil {
		defer dev.Close()
	}
	published, err := v.published(dev)
	if err != nil {
		return err
	}
	target, err := resolve(p.Target)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(published, func(m mountPoint) bool { return m.MountPoint == target }); i >= 0 {
		if p.isWhole(v, published[i].MountOptions) {
			return nil
		}
		if err := unmount(target); err != nil {
			return err
		}
		published = slices.Delete(published, i, i+1)
	}
	if p.Single && len(published) > 0 {
		return fmt.Errorf("%w by another pod at %s, and its access mode ReadWriteOncePod allows only one", ErrInUse, published[0].MountPoint)
	}
	there, err := mountAt(target)
	if err != nil {
		return err
	}
	if there != nil {
		return fmt.Errorf("%w: something else is mounted at %s", ErrExists, target)
	}
	if err := makeTarget(target, v.Block); err != nil {
		return err
	}
	options := []string{"bind"}
	if v.Kind != Image { // a bind of an image has the options of its mount
		options = append(append(options, safe[:]...), p.Options...)
	}
	if p.ReadOnly {
		options = append(options, "ro")
	}
	if err := s.mounter.MountSensitiveWithoutSystemd(source, target, "", options, nil); err != nil {
		return fmt.Errorf("mount volume: %w", err)
	}
	return nil
}

// isWhole tells whether a bind mount has its options. A second system call sets them, and kedge may
// have been killed before it.
func (p *Publication) isWhole(v *Volume, options []string) bool {
	hasOptions := v.Kind == Image || slices.Contains(options, safe[0]) || slices.Contains(p.Options, "suid")
	return hasOptions && (!p.ReadOnly || slices.Contains(options, "ro"))
}

// source returns the path to mount for pods, and for an image its device, open.
func (v *Volume) source() (string, *os.File, error) {
	if err := v.isThere(); err != nil {
		return "", nil, err
	}
	if v.Kind != Image {
		return v.data(), nil, nil
	}
	dev, err := attached(v.image())
	if err != nil {
		return "", nil, err
	}
	if dev == nil {
		return "", nil, fmt.Errorf("%s: %w", v.Name, ErrNotStaged)
	}
	if v.Block {
		return dev.Name(), dev, nil
	}
	path, err := mountedAt(dev)
	if path != "" {
		return filepath.Join(path, "data"), dev, nil
	}
	dev.Close()
	if err == nil {
		err = fmt.Errorf("%s: %w", v.Name, ErrNotStaged)
	}
	return "", nil, err
}

// published returns the mounts through which pods use a volume or a subPath of it. dev is the device
// of an image.
func (v *Volume) published(dev *os.File) ([]mountPoint, error) {
	all, err := mountPoints()
	if err != nil {
		return nil, err
	}
	var found []mountPoint
	for _, m := range all {
		var is bool
		switch {
		case v.Kind != Image:
			is = strings.Contains(m.Root+"/", "/"+v.Name+"/data/")
		case v.Block: // a pod gets the file of the device in /dev
			is = strings.HasSuffix(m.Root, "/"+filepath.Base(dev.Name())) && strings.HasSuffix(m.FsType, "tmpfs")
		default: // the whole file system is mounted only where it is staged
			is = m.Root != "/" && m.isOf(dev)
		}
		if is {
			found = append(found, m)
		}
	}
	return found, nil
}

// InUse tells whether a pod uses a volume, or may use it in a moment.
func (s *Store) InUse(v *Volume) (bool, error) {
	if v.Kind == Image {
		dev, err := attached(v.image())
		if dev == nil {
			return false, err
		}
		defer dev.Close()
		if !v.Block {
			return true, nil
		}
		published, err := v.published(dev)
		return len(published) > 0, err
	}
	published, err := v.published(nil)
	return len(published) > 0, err
}

// Unpublish undoes Publish.
func (s *Store) Unpublish(target string) error {
	if err := unmount(target); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove mount point: %w", err)
	}
	return nil
}

// makeTarget makes the mount point: a folder, or a file for a block device.
func makeTarget(target string, block bool) error {
	if !block {
		if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make mount point: %w", err)
		}
		return nil
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o660)
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return file.Close()
}
