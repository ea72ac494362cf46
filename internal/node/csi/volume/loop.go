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

// checkLoop tells whether this node can attach images, by asking for a device
// that it does not use.
func checkLoop() error {
	dev, err := freeLoop(os.O_RDONLY)
	if err != nil {
		return err
	}
	return dev.Close()
}

// freeLoop opens a loop device that nobody uses, at the moment.
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
	dev, err := os.OpenFile("/dev/loop"+strconv.Itoa(number), flags, 0)
	if err != nil {
		return nil, fmt.Errorf("open loop device: %w", err)
	}
	return dev, nil
}

// attach makes image a block device, and returns that, open. If it is one already,
// that is returned: two devices over one file would spoil it.
//
// With autoclear the kernel detaches it when the last one that has it open or
// mounted lets go. A kill -9 before it is mounted leaves nothing then, and one
// after that changes nothing for the pods. A raw block volume is not open while no
// pod runs, and so is attached without.
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
	// Direct: else each page would be cached twice. The kernel does without where
	// the disk cannot.
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
			// Some kernels mount nothing that somebody may write to.
			reader, err := os.Open(dev.Name())
			return reader, errors.Join(err, dev.Close())
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) { // somebody else took it
			return nil, fmt.Errorf("attach %s: %w", image, err)
		}
	}
}

// limitDiscards lets a device not pass on what a pod discards, which mkfs does with all
// of a raw block volume: the blocks were allocated for it. Or it does so again, since
// the limit outlives the device's image. Where /sys cannot be written the image gets
// holes, which count as promised.
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

// attached returns the loop device of image, open, or nil if it has none, or is not
// there itself. It is known by its inode: the names of folders differ between mount
// namespaces.
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
		// Other programs' devices are not even opened.
		if backing, err := os.ReadFile(path); err != nil || !strings.HasSuffix(strings.TrimSpace(string(backing)), volume) {
			continue
		}
		// To read: a writer that closes it makes udev look what is on it.
		dev, err := os.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(path)))))
		if err != nil {
			return nil, fmt.Errorf("open loop device: %w", err)
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == file.Ino && info.Device == uint64(file.Dev) {
			return dev, nil
		}
		dev.Close()
	}
	return nil, nil
}

// detach lets go of a device. If a pod still has it open, that happens when it
// closes it.
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
