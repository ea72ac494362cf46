package teardown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmountBelow unmounts all that is mounted below the folders, not what is
// mounted on the folders themselves: that is the user's.
func unmountBelow(folders ...string) error {
	for i, folder := range folders {
		folders[i] = resolve(folder)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !isBelow(m.Mountpoint, folders), false
	})
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var faults []error
	// The last mounted first: it may lie in another.
	for i := len(mounts) - 1; i >= 0; i-- {
		faults = append(faults, unmount(mounts[i].Mountpoint))
	}
	return errors.Join(faults...)
}

// resolve follows symbolic links, as the kernel has done in its list of mounts.
func resolve(folder string) string {
	if resolved, err := filepath.EvalSymlinks(folder); err == nil {
		return resolved
	}
	return folder // it is not there, nor is anything below it
}

func isBelow(path string, folders []string) bool {
	for _, folder := range folders {
		if strings.HasPrefix(path, filepath.Clean(folder)+"/") {
			return true
		}
	}
	return false
}

// unmount detaches a mount; it is no fault if there is none.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

// RemoveAll removes folders with all in them. It refuses while something is
// mounted below one: that may be a user's data.
func RemoveAll(folders ...string) error {
	var faults []error
	for _, folder := range folders {
		resolved := resolve(folder)
		mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
			return !isBelow(m.Mountpoint, []string{resolved}), false
		})
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("list mounts: %w", err))
		case len(mounts) > 0:
			faults = append(faults, fmt.Errorf("remove %s: %s is mounted in it; unmount that first", folder, mounts[0].Mountpoint))
		default:
			faults = append(faults, removeContents(folder))
		}
	}
	return errors.Join(faults...)
}

// removeContents removes a folder; of one that is itself a mount, or that the
// user has put elsewhere by a symbolic link, only the contents.
func removeContents(folder string) error {
	mounted, err := mountinfo.Mounted(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Lstat(folder)
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", folder, err)
	}
	if linked := info.Mode()&fs.ModeSymlink != 0; !mounted && !linked {
		return os.RemoveAll(folder)
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list %s: %w", folder, err)
	}
	faults := make([]error, 0, len(entries))
	for _, entry := range entries {
		faults = append(faults, os.RemoveAll(filepath.Join(folder, entry.Name())))
	}
	return errors.Join(faults...)
}
