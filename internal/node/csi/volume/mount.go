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

// safe are the options of what is mounted, before those of the storage class: pods
// need no devices and no setuid programs from a volume, and a host must not have
// them from pods.
var safe = [...]string{"nosuid", "nodev"}

// Stage prepares a volume for the pods of this node: it mounts an image at target,
// and makes its file system as large as the volume. It does the rest of what an
// interrupted call has begun, and all of it again after a reboot.
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
	// One that no pod has is mounted anew, and so is checked and grows.
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
	if v.FSType == "xfs" { // grows while it is mounted only
		if err := growMounted(v.FSType, target, dev); err != nil {
			return err
		}
	}
	if err := makeData(target); err != nil {
		return err
	}
	// Fills what the kernel's growing has zeroed by making holes. They count as
	// promised if there is no room: that is no reason not to mount it.
	_ = v.refill()
	return nil
}

// unmountUnused unmounts an image that is staged, but that no pod has. If kedge is
// killed between the two, the kubelet forgets to unstage it: after a restart it looks
// for volumes of pods only (pkg/kubelet/volumemanager/reconciler/reconstruct.go).
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
			return fmt.Errorf("the file system of the volume is damaged: mend it with e2fsck %s: %w", v.image(), err)
		} else if err != nil {
			return err
		}
		// df shows the size of the claim then, and the file system's own books as
		// used, not as missing.
		all = append(all, "minixdf")
	case "xfs":
		all = append(all, "nouuid") // a copy has that of its source
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := s.mounter.MountSensitiveWithoutSystemd(dev.Name(), target, v.FSType, append(all, options...), nil); err != nil {
		return fmt.Errorf("mount volume: %w", err)
	}
	return nil
}

// check checks an ext4 file system, in a moment if it is clean, and makes it as
// large as its device.
func check(dev *os.File) error {
	alone, err := os.OpenFile(dev.Name(), os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil // mounted, in the namespace of a pod that is ending, or being checked
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

// Unstage undoes Stage.
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

// letGo detaches a raw block volume that no pod has.
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

// isOf tells whether the file system of a device is mounted.
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

// mountAt is what is mounted at a path, nil if nothing is.
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

// resolve makes of a path what the kernel calls it: the kubelet's folder may be
// behind a link.
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
