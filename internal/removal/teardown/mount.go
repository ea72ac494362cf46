package teardown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// unmountBelow unmounts everything that is mounted below the folders. What is mounted on
// the folders themselves is the user's, and stays.
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
	// The last mounted first, because it may be inside another mount.
	for i := len(mounts) - 1; i >= 0; i-- {
		faults = append(faults, unmount(mounts[i].Mountpoint))
	}
	return errors.Join(faults...)
}

// resolve follows symbolic links, because the kernel's list of mounts has the resolved
// paths.
func resolve(folder string) string {
	if resolved, err := filepath.EvalSymlinks(folder); err == nil {
		return resolved
	}
	return folder // the folder does not exist, so nothing is mounted below it
}

func isBelow(path string, folders []string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(path, filepath.Clean(folder)+"/") })
}

// unmount detaches a mount. It does not fail if there is none.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

// RemoveAll removes folders with everything in them. It fails for a folder in which
// something is mounted, because that may be a user's data.
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
			faults = append(faults, fmt.Errorf("remove %s: %s is mounted in it: unmount that first", folder, mounts[0].Mountpoint))
		default:
			faults = append(faults, removeContents(folder))
		}
	}
	return errors.Join(faults...)
}

// removeContents removes a folder. If the folder is itself a mount, or a symbolic link
// that the user has made, it removes only the contents.
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
