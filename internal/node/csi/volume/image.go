package volume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// blockSize is the block size of all file systems in images, so that each can grow to any size.
const blockSize = 4096

// packages names the Debian package of each program for file systems.
var packages = map[string]string{"mkfs.ext4": "e2fsprogs", "e2fsck": "e2fsprogs", "resize2fs": "e2fsprogs", "mkfs.xfs": "xfsprogs", "xfs_growfs": "xfsprogs"}

// program returns the path of a program for file systems. It also searches folders that are missing
// in a user's PATH.
func program(name string) (string, error) {
	path, err := host.LookPath(name, "/usr/sbin", "/sbin")
	if err != nil {
		return "", fmt.Errorf("%w: this host has no %s: install the package %s", ErrImpossible, name, packages[name])
	}
	return path, nil
}

// run runs a program for file systems. If the program changes a file system with data, ctx must not be
// that of a call, which the kubelet may give up: the program must not be killed. It may even outlive
// kedge. The next call waits until the program releases the device.
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

// inOwnDomain makes the programs that this goroutine starts run in kedge's domain of SELinux until the returned function is
// called. Debian's policy has a domain for programs for file systems. In that domain mkfs may change devices, but not the
// image of a volume. Programs that read what a pod has written, such as e2fsck, stay in that domain. (The library for SELinux
// does not help: containerd turns it off for this process unless the user has set selinux.)
func inOwnDomain() (end func()) {
	own, err := os.ReadFile("/proc/thread-self/attr/current")
	if _, missing := os.Stat("/sys/fs/selinux/enforce"); err != nil || missing != nil {
		return func() {}
	}
	// The domain of the next program belongs to the thread. If the policy does not let kedge choose it, the program says what
	// it may not do.
	const next = "/proc/thread-self/attr/exec"
	runtime.LockOSThread()
	_ = os.WriteFile(next, []byte(strings.TrimRight(string(own), "\x00\n")), 0)
	return func() {
		_ = os.WriteFile(next, []byte("\n"), 0)
		runtime.UnlockOSThread()
	}
}

// makeImage makes the image of a new volume, with a file system unless it is a raw block volume.
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
	end := inOwnDomain()
	switch v.FSType {
	case "ext4":
		// mkfs initializes everything now, mostly by keeping the file's zeros: then the kernel
		// has nothing left to do later, and nothing is discarded.
		err = run(ctx, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-m", "0",
			"-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", v.image())
	case "xfs":
		err = run(ctx, "mkfs.xfs", "-q", "-f", "-K", v.image())
	}
	end()
	if err != nil {
		return err
	}
	s.onStep("file system made")
	return allocate(file, v.Size)
}

// allocate makes file size bytes long, allocates all of it, and syncs it. If there is not enough space,
// the file keeps its size.
func allocate(file *os.File, size int64) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("look at image: %w", err)
	}
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // then Room counts the space as promised
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

// noSpace adds ErrNoSpace to the errors of a full disk.
func noSpace(err error) error {
	if !errors.Is(err, ErrNoSpace) && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// growMounted makes the file system that is mounted at path as large as its device. It does nothing
// if the file system has that size.
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
	// resize2fs calls this for a mounted file system.
	const resizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS of linux/ext4.h
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFS, uintptr(unsafe.Pointer(&blocks)))
	if errno == unix.EPERM {
		return fmt.Errorf("%w: its file system cannot grow while it is mounted, because kedge lacks CAP_SYS_RESOURCE or the file system has errors: delete the pod, and the volume grows before its next mount", ErrInUse)
	}
	if errno != 0 {
		return fmt.Errorf("grow file system to %s: %w", bytes(size), errno)
	}
	return nil
}

// growUnmounted makes an unmounted ext4 file system as large as its device, which needs no privilege.
// It is for copies that are larger than their source.
func growUnmounted(dev *os.File) error {
	size, err := deviceSize(dev)
	if err != nil {
		return err
	}
	if there, err := ext4Blocks(dev); err != nil || there >= uint64(size/blockSize) {
		return err
	}
	// resize2fs requires a full check first.
	if err := fsck("-f", "-p", dev.Name()); err != nil {
		return err
	}
	return run(context.Background(), "resize2fs", dev.Name())
}

// ext4Blocks returns the size of the ext4 file system on a device, in blocks. The format is
// https://docs.kernel.org/filesystems/ext4/globals.html#super-block.
func ext4Blocks(dev *os.File) (uint64, error) {
	var super [1024]byte
	if _, err := dev.ReadAt(super[:], 1024); err != nil {
		return 0, fmt.Errorf("read file system: %w", err)
	}
	low, high := binary.LittleEndian.Uint32(super[0x4:]), binary.LittleEndian.Uint32(super[0x150:])
	return uint64(high)<<32 | uint64(low), nil
}

// fsck checks an ext4 file system and repairs it as far as that is safe.
func fsck(args ...string) error {
	err := run(context.Background(), "e2fsck", args...)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil // repaired
	}
	return err
}

// deviceSize returns the size of a block device in bytes.
func deviceSize(dev *os.File) (int64, error) {
	size, err := dev.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("measure %s: %w", dev.Name(), err)
	}
	return size, nil
}

// mountsOf returns the mounts of an image's device.
func mountsOf(dev *os.File) ([]mountPoint, error) {
	all, err := mountPoints()
	return slices.DeleteFunc(all, func(m mountPoint) bool { return !m.isOf(dev) }), err
}

// mountedAt returns where the root of a device's file system is mounted, or "" if it is not.
func mountedAt(dev *os.File) (string, error) {
	where, err := mountsOf(dev)
	for _, m := range where {
		if m.Root == "/" {
			return m.MountPoint, nil
		}
	}
	return "", err
}
