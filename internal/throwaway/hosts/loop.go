package hosts

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

// DetachLoops detaches the loop devices whose files are below a folder, or on a disk whose own file is
// there. Nobody else detaches those of raw block volumes. The folder need not exist.
func DetachLoops(folder string) error {
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
	err = ForLoops(func(device *os.File, info *unix.LoopInfo64) error {
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
	return ForLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if !disks[info.Device] {
			return nil
		}
		return detach(device)
	})
}

// DetachLoopsOn is DetachLoops for files on file systems in memory, which nobody can look at any more when
// their host is gone. devices are the numbers of the file systems, and folder is where the files were on
// the host.
func DetachLoopsOn(devices []uint64, folder string) error {
	return ForLoops(func(device *os.File, info *unix.LoopInfo64) error {
		if !slices.Contains(devices, info.Device) || !strings.HasPrefix(unix.ByteSliceToString(info.File_name[:]), folder+"/") {
			return nil
		}
		return detach(device)
	})
}

func detach(device *os.File) error {
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", device.Name(), err)
	}
	return nil
}

// ForLoops calls a function with each loop device that is in use.
func ForLoops(do func(device *os.File, info *unix.LoopInfo64) error) error {
	inUse, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return err
	}
	for _, folder := range inUse {
		device, err := os.Open(filepath.Join("/dev", filepath.Base(filepath.Dir(folder))))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue // It belongs to the machine of this container, or to root.
		}
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
