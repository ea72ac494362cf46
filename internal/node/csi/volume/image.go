package volume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// blockSize is that of the file systems in images, whatever their size, so that
// all can grow to any.
const blockSize = 4096

// packages has the Debian package of each program for file systems.
var packages = map[string]string{"mkfs.ext4": "e2fsprogs", "e2fsck": "e2fsprogs", "resize2fs": "e2fsprogs", "mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs"}

// program finds a program for file systems, also where PATH is that of a user.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, folder := range []string{"/usr/sbin", "/sbin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(folder, name))
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w: this host has no %s: install the package %s", ErrImpossible, name, packages[name])
	}
	return path, nil
}

// run runs such a program. What changes a file system that has something in it is not
// to be killed with the context of a call that the kubelet has given up, nor with
// kedge: the next call waits until it lets go of the device.
func run(ctx context.Context, name string, args ...string) error {
	path, err := program(name)
	if err != nil {
		return err
	}
	if output, err := exec.CommandContext(ctx, path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// makeImage makes the image of a new volume, with a file system unless it is for
// raw block access.
func (s *Store) makeImage(ctx context.Context, v *Volume) error {
	file, err := os.OpenFile(v.image(), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make image: %w", datadir.Explain(err))
	}
	defer file.Close()
	if err := allocate(file, v.Size); err != nil {
		return err
	}
	s.onStep("image allocated")
	switch v.FSType {
	case "ext4":
		// All is written now, most of it by making the file's zeros real: no thread
		// of the kernel does it later, and it has no reason to discard.
		err = run(ctx, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0",
			"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", v.image())
	case "xfs":
		err = run(ctx, "mkfs.xfs", "-q", "-f", "-K", v.image())
	}
	if err != nil {
		return err
	}
	s.onStep("file system made")
	return allocate(file, v.Size)
}

// allocate makes file size bytes long, all of which are allocated, and synced. If
// there is no room the file is as long as it was.
func allocate(file *os.File, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("look at image: %w", err)
	}
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // promised then, and counted so (Room)
	}
	if err == nil {
		err = file.Truncate(size)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Truncate(info.Size())
		return fmt.Errorf("allocate %s: %w", bytes(size), noSpace(err))
	}
	return nil
}

// noSpace makes of the faults of a full disk ErrNoSpace.
func noSpace(err error) error {
	if !errors.Is(err, ErrNoSpace) && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// growMounted makes the file system that is mounted at path as large as its device.
// It does nothing to one that is.
func growMounted(fstype, path string, dev *os.File) error {
	if fstype == "xfs" {
		return run(context.Background(), "xfs_growfs", "-d", path)
	}
	size, err := deviceSize(dev)
	if err != nil {
		return err
	}
	blocks := uint64(size / blockSize)
	if there, err := ext4Blocks(dev); err != nil || there >= blocks {
		return err
	}
	root, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open file system: %w", err)
	}
	defer root.Close()
	// What resize2fs does to a file system that is mounted.
	const resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS of linux/ext4.h
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks)))
	if errno == unix.EPERM {
		return fmt.Errorf("%w: file systems that are mounted cannot grow on this host, as kedge lacks CAP_SYS_RESOURCE, or this one has had errors: delete the pod, and it grows before it is mounted again", ErrInUse)
	}
	if errno != 0 {
		return fmt.Errorf("grow file system to %s: %w", bytes(size), errno)
	}
	return nil
}

// growUnmounted makes an ext4 file system that is not mounted as large as its device.
// A copy that is larger than its source grows here, where that needs no privilege.
func growUnmounted(dev *os.File) error {
	size, err := deviceSize(dev)
	if err != nil {
		return err
	}
	if there, err := ext4Blocks(dev); err != nil || there >= uint64(size/blockSize) {
		return err
	}
	// resize2fs wants it checked whole.
	if err := fsck("-f", "-p", dev.Name()); err != nil {
		return err
	}
	return run(context.Background(), "resize2fs", dev.Name())
}

// ext4Blocks is the size of the ext4 file system on a device, in blocks: see
// https://docs.kernel.org/filesystems/ext4/globals.html#super-block.
func ext4Blocks(dev *os.File) (uint64, error) {
	var super [1024]byte
	if _, err := dev.ReadAt(super[:], 1024); err != nil {
		return 0, fmt.Errorf("read file system: %w", err)
	}
	low, high := binary.LittleEndian.Uint32(super[0x4:]), binary.LittleEndian.Uint32(super[0x150:])
	return uint64(high)<<32 | uint64(low), nil
}

// fsck checks a file system, and repairs it as far as that is safe.
func fsck(args ...string) error {
	err := run(context.Background(), "e2fsck", args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // repaired
	}
	return err
}

// deviceSize is the size of a block device in bytes.
func deviceSize(dev *os.File) (int64, error) {
	size, err := dev.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", dev.Name(), err)
	}
	return size, nil
}

// mountsOf are the mounts of an image's device.
func mountsOf(dev *os.File) ([]mountPoint, error) {
	all, err := mountPoints()
	return slices.DeleteFunc(all, func(m mountPoint) bool { return !m.isOf(dev) }), err
}

// mountedAt is where the whole file system of a device is mounted, "" if it is not.
func mountedAt(dev *os.File) (string, error) {
	where, err := mountsOf(dev)
	for _, m := range where {
		if m.Root == "/" {
			return m.MountPoint, nil
		}
	}
	return "", err
}
