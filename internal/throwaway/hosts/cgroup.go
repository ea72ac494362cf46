package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Hierarchies returns where cgroups are mounted: each controller of version 1, or the one hierarchy of
// version 2.
func Hierarchies() (v1, v2 []string, err error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter("/sys/fs/cgroup"))
	if err != nil {
		return nil, nil, err
	}
	for _, m := range mounts {
		switch m.FSType {
		case "cgroup":
			v1 = append(v1, m.Mountpoint)
		case "cgroup2":
			v2 = append(v2, m.Mountpoint)
		}
	}
	return v1, v2, nil
}

// MakeCgroup makes a cgroup in all hierarchies that can hold a host's pods. The path is relative.
func MakeCgroup(path string) error {
	v1, v2, err := Hierarchies()
	if err != nil {
		return fmt.Errorf("find cgroups: %w", err)
	}
	return makeCgroup(v1, v2, path)
}

func makeCgroup(v1, v2 []string, path string) error {
	for _, root := range v1 {
		for folder := range descend(root, path) {
			if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			// A new cpuset is empty and accepts no process until it has CPUs.
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(filepath.Dir(folder), file))
				if err != nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(folder, file), value, 0o644); err != nil {
					return fmt.Errorf("set up cpuset: %w", err)
				}
			}
		}
	}
	for _, root := range v2 {
		for folder := range descend(root, path) {
			parent := filepath.Dir(folder)
			controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
			if err != nil {
				return fmt.Errorf("read cgroup controllers: %w", err)
			}
			for _, controller := range strings.Fields(string(controllers)) {
				// Not every test needs a controller that is missing.
				_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
			}
			if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
	}
	return nil
}

// descend yields root/a and root/a/b for the path a/b.
func descend(root, path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		folder := root
		for part := range strings.SplitSeq(path, "/") {
			folder = filepath.Join(folder, part)
			if !yield(folder) {
				return
			}
		}
	}
}

// RemoveCgroups removes the cgroup called path and everything below it in every hierarchy. Killed
// processes may take a moment to disappear.
func RemoveCgroups(path string) error {
	v1, v2, err := Hierarchies()
	if err != nil {
		return fmt.Errorf("find cgroups: %w", err)
	}
	roots := slices.Concat(v1, v2)
	for _, root := range v1 {
		if filepath.Base(root) == "memory" {
			roots = append(roots, holders(root, path)...)
		}
	}
	for _, root := range roots {
		deadline := time.Now().Add(20 * time.Second)
		for {
			err := removeTree(filepath.Join(root, path))
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("remove cgroup: %w", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// holders returns the cgroups below root that contain a cgroup called path. ContainMemory makes it in
// the test's own cgroup, which may be another one by now.
func holders(root, path string) []string {
	var found []string
	_ = filepath.WalkDir(root, func(folder string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // the cgroup is gone
		}
		if holder, ok := strings.CutSuffix(folder, "/"+path); ok && holder != root {
			found = append(found, holder)
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// removeTree removes folder with rmdir only. The files of a cgroup disappear with it.
func removeTree(folder string) error {
	var folders []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, folder := range slices.Backward(folders) {
		if err := unix.Rmdir(folder); err != nil && err != unix.ENOENT {
			return &fs.PathError{Op: "rmdir", Path: folder, Err: err}
		}
	}
	return nil
}
