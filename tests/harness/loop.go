package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// attach attaches a file to a loop device.
func attach(backing *os.File, flags uint32) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", number), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		device.Close()
		// Another process was faster.
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up %s: %w", device.Name(), err)
		}
	}
}

// Loops returns the loop devices whose files are on the disk. The host itself has set them up.
func (d *Disk) Loops() (names []string, err error) {
	var disk unix.Stat_t
	if err := unix.Stat(d.host.Path(diskFolders[0]), &disk); err != nil {
		return nil, fmt.Errorf("look at the disk: %w", err)
	}
	err = forLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if info.Device == disk.Dev {
			names = append(names, device.Name())
		}
		return nil
	})
	return names, err
}

// detachLoops detaches the loop devices whose files are below a folder, or on an attached disk. Nobody
// else detaches those of raw block volumes.
func detachLoops(folder string) error {
	type file struct{ device, inode uint64 }
	own, disks := map[file]bool{}, map[uint64]bool{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		var stat unix.Stat_t
		if err == nil && entry.Type().IsRegular() && unix.Lstat(path, &stat) == nil {
			own[file{stat.Dev, stat.Ino}] = true
		}
		return nil // a file that was removed in the meantime has no loop device
	})
	if err != nil {
		return err
	}
	detach := func(device *os.File) error {
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("detach %s: %w", device.Name(), err)
		}
		return nil
	}
	err = forLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if !own[file{info.Device, info.Inode}] {
			return nil
		}
		var stat unix.Stat_t
		if err := unix.Fstat(int(device.Fd()), &stat); err != nil {
			return err
		}
		disks[stat.Rdev] = true
		return detach(device)
	})
	if err != nil {
		return err
	}
	return forLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if !disks[info.Device] {
			return nil
		}
		return detach(device)
	})
}

// forLoops calls a function with each loop device that is in use.
func forLoops(do func(device *os.File, info *unix.LoopInfo64) error) error {
	inUse, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return err
	}
	for _, folder := range inUse {
		device, err := os.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(folder))))
		if err != nil {
			return err
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		switch {
		case err == nil:
			err = do(device, info)
		case errors.Is(err, unix.ENXIO): // no longer in use
			err = nil
		default:
			err = fmt.Errorf("look at %s: %w", device.Name(), err)
		}
		if err := errors.Join(err, device.Close()); err != nil {
			return err
		}
	}
	return nil
}
