package teardown

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// podCgroups returns the kubelet's cgroups that a process is in, such as /kubepods. That
// is one, or with version 1 one for each hierarchy if those differ.
func podCgroups(process procfs.Proc) []string {
	cgroups, err := process.Cgroups()
	if err != nil {
		return nil
	}
	var roots []string
	for _, cgroup := range cgroups {
		if root, ok := podRoot(cgroup.Path); ok {
			roots = append(roots, root)
		}
	}
	return roots
}

// podRoot cuts a cgroup's path after the kubelet's own cgroup.
func podRoot(path string) (string, bool) {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if part == "kubepods" || part == podSlice {
			return strings.Join(parts[:i+1], "/"), true
		}
	}
	return "", false
}

// removeCgroup removes a cgroup with everything below it from every hierarchy, and kills
// the processes that are left in it.
func removeCgroup(ctx context.Context, path string) error {
	deadline := time.Now().Add(patience)
	for _, folder := range cgroupFolders(path) {
		for {
			err := removeCgroupFolder(folder, killMembers)
			if err == nil {
				break
			}
			if late := pause(ctx, deadline); late != nil {
				return fmt.Errorf("remove cgroup: %w", err)
			}
		}
	}
	return nil
}

// cgroupFolders returns the folders where a cgroup may be: in the one hierarchy of
// version 2, or in those of version 1.
func cgroupFolders(path string) []string {
	folders, _ := filepath.Glob(filepath.Join(cgroupMount, "*", path))
	return append(folders, filepath.Join(cgroupMount, path))
}

// removeCgroupFolder removes a cgroup and those below it. It calls empty for each one
// before it removes it.
func removeCgroupFolder(folder string, empty func(folder string)) error {
	var folders []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	// The deepest first, because a cgroup can be removed only when nothing is below it.
	for i := len(folders) - 1; i >= 0; i-- {
		empty(folders[i])
		if err := unix.Rmdir(folders[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "rmdir", Path: folders[i], Err: err}
		}
	}
	return nil
}

func keepMembers(string) {}

// populated tells whether a process is in a cgroup or in one below it.
func populated(folder string) bool {
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // gone meanwhile, or not a cgroup
		}
		if members, err := os.ReadFile(filepath.Join(path, "cgroup.procs")); err == nil && len(members) > 0 {
			return fs.ErrExist
		}
		return nil
	})
	return err != nil
}

// killMembers kills the processes that are no longer below a shim. If some remain, the
// cgroup cannot be removed, and that is reported.
func killMembers(folder string) {
	text, err := os.ReadFile(filepath.Join(folder, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
