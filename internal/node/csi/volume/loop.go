package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkLoop returns an error if this node cannot attach images. It asks for a free device and does not
// use it.
func checkLoop() error {
	dev, err := freeLoop(os.O_RDONLY)
	if err != nil {
		return err
	}
	return dev.Close()
}

// freeLoop opens a loop device that is not in use. Another process may take it in the meantime.
func freeLoop(flags int) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("no loop devices: %w", err)
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return nil, fmt.Errorf("find free loop device: %w", err)
	}
	return openLoop(number, flags)
}

// loopMajor is the major number of loop devices: LOOP_MAJOR in linux/major.h.
const loopMajor = 7

// openLoop opens a loop device. In a container, nobody makes the nodes of devices in /dev that the kernel makes later.
func openLoop(number, flags int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(number)
	dev, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(number)))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("make node of loop device %s: %w", path, err)
		}
		dev, err = os.OpenFile(path, flags, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open loop device: %w", err)
	}
	return dev, nil
}

// attach attaches image to a loop device and returns the device, open. If the image is attached
// already, it returns that device: two devices over one file would corrupt it.
//
// With autoclear the kernel detaches the device when nobody has it open or mounted any more. So a
// kedge that is killed before the mount leaves nothing behind, and one that is killed after it
// changes nothing for the pods. A raw block volume is not open while no pod runs, so it is attached
// without autoclear.
func attach(image string, autoclear bool) (*os.File, error) {
	file, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	defer file.Close()
	if dev, err := attached(image); dev != nil || err != nil {
		return dev, err
	}
	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	// Without direct I/O each page would be cached twice. If the disk does not support it, the kernel
	// ignores this flag.
	config.Info.Flags = unix.LO_FLAGS_DIRECT_IO
	if autoclear {
		config.Info.Flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], image)
	for {
		dev, err := freeLoop(os.O_RDWR)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			limitDiscards(dev, !autoclear)
			// Some kernels refuse to mount a device that a process has open for writing.
			reader, err := os.Open(dev.Name())
			return reader, errors.Join(err, dev.Close())
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // another process took the device
			return nil, fmt.Errorf("attach %s: %w", image, err)
		}
	}
}

// limitDiscards makes a device ignore discards, or removes that limit. mkfs in a pod discards all of a
// raw block volume, whose blocks were allocated for it. The limit outlives the device's image, so
// it must be removed for the next one. If /sys cannot be written, discards make holes in the image,
// which count as promised.
func limitDiscards(dev *os.File, limited bool) {
	queue := filepath.Join("/sys/block", filepath.Base(dev.Name()), "queue")
	limit := []byte("0")
	if !limited {
		var err error
		if limit, err = os.ReadFile(filepath.Join(queue, "discard_max_hw_bytes")); err != nil {
			return
		}
	}
	_ = os.WriteFile(filepath.Join(queue, "discard_max_bytes"), limit, 0)
}

// attached returns the loop device of image, open. It returns nil if the image is not attached or
// does not exist. It compares inodes, because the names of folders differ between mount namespaces.
func attached(image string) (*os.File, error) {
	var file unix.Stat_t
	if err := unix.Lstat(image, &file); errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look at image: %w", err)
	}
	inUse, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	volume := filepath.Join("/", filepath.Base(filepath.Dir(image)), filepath.Base(image))
	for _, path := range inUse {
		// This avoids opening devices of other programs.
		if backing, err := os.ReadFile(path); err != nil || !strings.HasSuffix(strings.TrimSpace(string(backing)), volume) {
			continue
		}
		// It is opened for reading: when a writer closes a device, udev probes its contents.
		number, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(path))), "loop"))
		if err != nil {
			continue
		}
		dev, err := openLoop(number, os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == file.Ino && info.Device == uint64(file.Dev) {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// detach detaches a device. If a pod still has it open, the kernel detaches it when the pod closes it.
func detach(dev *os.File) error {
	limitDiscards(dev, false)
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", dev.Name(), err)
	}
	return nil
}

// resized tells the device that its image has grown.
func resized(dev *os.File) error {
	if err := unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("grow %s: %w", dev.Name(), err)
	}
	return nil
}
