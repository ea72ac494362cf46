package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// safe are mount options that come before those of the storage class. Pods need no devices and no
// setuid programs in a volume, and the host must be protected from those that pods make.
var safe = [...]string{"nosuid", "nodev"}

// Stage prepares a volume for the pods of this node: it mounts an image at target, and makes its
// file system as large as the volume. It completes what an interrupted call has begun, and does
// everything again after a reboot.
func (s *Store) Stage(name, target string, options []string) error {
	v, unlock, err := s.take(name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.isThere(); err != nil || v.Kind != Image {
		return err
	}
	dev, err := attach(v.image(), !v.Block)
	if err != nil {
		return err
	}
	defer dev.Close()
	s.onStep("attached")
	if v.Block {
		return nil
	}
	// An image that no pod uses is mounted again, so that it is checked and can grow.
	if err := v.unmountUnused(dev); err != nil {
		return err
	}
	s.onStep("unused unmounted")
	there, err := mountAt(target)
	if err != nil {
		return err
	}
	switch {
	case there == nil:
		if err := s.mountImage(v, dev, target, options); err != nil {
			return err
		}
	case !there.isOf(dev):
		return fmt.Errorf("%w: something else is mounted at %s", ErrExists, target)
	}
	s.onStep("mounted")
	if v.FSType == "xfs" { // xfs can grow only while it is mounted
		if err := growMounted(v.FSType, target, dev); err != nil {
			return err
		}
	}
	if err := makeData(target); err != nil {
		return err
	}
	// When the kernel grows a file system, it zeroes blocks by making holes in the image. refill
	// allocates them. An error is ignored: the holes count as promised, and the volume can be used.
	_ = v.refill()
	return nil
}

// unmountUnused unmounts an image that is staged and that no pod uses. If kedge is killed between
// staging and publishing, the kubelet forgets to unstage the volume: after a restart it looks only
// for volumes of pods (pkg/kubelet/volumemanager/reconciler/reconstruct.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler/reconstruct.go
func (v *Volume) unmountUnused(dev *os.File) error {
	published, err := v.published(dev)
	if err != nil || len(published) > 0 {
		return err
	}
	where, err := mountsOf(dev)
	for _, m := range where {
		err = errors.Join(err, unmount(m.MountPoint))
	}
	return err
}

// mountImage checks and mounts the file system of an image.
func (s *Store) mountImage(v *Volume, dev *os.File, target string, options []string) error {
	all := safe[:]
	switch v.FSType {
	case "ext4":
		if err := check(dev); errors.As(err, new(*exec.ExitError)) {
			return fmt.Errorf("the file system of the volume is damaged: repair it with e2fsck %s: %w", v.image(), err)
		} else if err != nil {
			return err
		}
		// With minixdf, df shows the size of the claim, and counts the file system's own metadata as
		// used.
		all = append(all, "minixdf")
	case "xfs":
		all = append(all, "nouuid") // a copy has the UUID of its source
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := s.mounter.MountSensitiveWithoutSystemd(dev.Name(), target, v.FSType, append(all, options...), nil); err != nil {
		return fmt.Errorf("mount volume: %w", err)
	}
	return nil
}

// check checks an ext4 file system, which takes a moment if it is clean, and makes it as large as its
// device.
func check(dev *os.File) error {
	alone, err := os.OpenFile(dev.Name(), os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil // mounted in the namespace of a pod that is ending, or being checked
	}
	if err != nil {
		return err
	}
	alone.Close()
	if err := fsck("-p", dev.Name()); err != nil {
		return err
	}
	return growUnmounted(dev)
}

// refill allocates holes in an image.
func (v *Volume) refill() error {
	if v.Reflinked {
		return nil
	}
	file, err := os.OpenFile(v.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size())
}

// Unstage undoes Stage. It returns nil if the volume does not exist.
func (s *Store) Unstage(name, target string) error {
	unlock, err := s.locks.write(name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := unmount(target); err != nil {
		return err
	}
	s.onStep("unmounted")
	v, err := s.load(name)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrName) {
		return nil
	}
	if err != nil || !v.Block {
		return err
	}
	return v.letGo()
}

// letGo detaches a raw block volume. It returns ErrInUse if a pod uses the volume.
func (v *Volume) letGo() error {
	dev, err := attached(v.image())
	if dev == nil {
		return err
	}
	defer dev.Close()
	published, err := v.published(dev)
	if err != nil {
		return err
	}
	if len(published) > 0 {
		return fmt.Errorf("%w at %s", ErrInUse, published[0].MountPoint)
	}
	return detach(dev)
}

// unmount removes all mounts from a path.
func unmount(path string) error {
	for {
		there, err := mountAt(path)
		if err != nil || there == nil {
			return err
		}
		if err := unix.Unmount(there.MountPoint, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", there.MountPoint, err)
		}
	}
}

// mountPoint is a line of the kernel's list of mounts.
type mountPoint struct{ mount.MountInfo }

// isOf tells whether this is a mount of the device's file system.
func (m *mountPoint) isOf(dev *os.File) bool {
	var stat unix.Stat_t
	return unix.Fstat(int(dev.Fd()), &stat) == nil && unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == uint64(stat.Rdev)
}

func mountPoints() ([]mountPoint, error) {
	all, err := mount.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	points := make([]mountPoint, len(all))
	for i := range all {
		points[i] = mountPoint{all[i]}
	}
	return points, nil
}

// mountAt returns the topmost mount at a path, or nil if nothing is mounted there.
func mountAt(path string) (*mountPoint, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	all, err := mountPoints()
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- { // the last one is on top
		if all[i].MountPoint == path {
			return &all[i], nil
		}
	}
	return nil, nil
}

// resolve returns the kernel's name of a mount point. The kubelet's folder may be behind a link.
func resolve(path string) (string, error) {
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.Clean(path), nil
	}
	if err != nil {
		return "", fmt.Errorf("find mount point: %w", err)
	}
	return filepath.Join(folder, filepath.Base(path)), nil
}
