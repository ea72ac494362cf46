package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage says how much of a volume is used.
type Usage struct {
	// Sizes in bytes.
	Total, Used, Free int64
	// Numbers of inodes, all zero for a raw block volume.
	Inodes, InodesUsed, InodesFree int64
	// Fault says what is wrong with the volume and what to do, or is empty.
	Fault string
}

// Usage measures a volume that is mounted at path. It returns ErrNotFound if nothing is mounted there.
func (s *Store) Usage(name, path string) (*Usage, error) {
	v, err := s.Get(name)
	if err != nil {
		return nil, err
	}
	there, err := mountAt(path)
	if err != nil {
		return nil, err
	}
	if there == nil {
		return nil, fmt.Errorf("%w at %s", ErrNotFound, path)
	}
	usage := Usage{Fault: v.fault(there)}
	if v.Block {
		usage.Total = v.Size
		return &usage, nil
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return nil, fmt.Errorf("measure volume: %w", err)
	}
	usage.Total, usage.Free = int64(stat.Blocks)*int64(stat.Bsize), int64(stat.Bavail)*int64(stat.Bsize)
	usage.Used = usage.Total - int64(stat.Bfree)*int64(stat.Bsize)
	usage.Inodes, usage.InodesFree = int64(stat.Files), int64(stat.Ffree)
	usage.InodesUsed = usage.Inodes - usage.InodesFree
	return &usage, nil
}

// fault returns what is wrong with a mounted volume, or "".
func (v *Volume) fault(there *mountPoint) string {
	if err := v.isThere(); err != nil {
		return err.Error()
	}
	if v.Kind == Quota && !enforcesProjects(v.Base) {
		return fmt.Sprintf("the size of the volume is no longer enforced: mount the disk of %s with the option prjquota", v.Base)
	}
	if v.Kind != Image || v.Block {
		return ""
	}
	if slices.Contains(there.SuperOptions, "ro") {
		return "the file system became read-only after an error: delete the pod, so that the file system is checked; see dmesg for the cause"
	}
	errors, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(there.Source), "errors_count"))
	if count := strings.TrimSpace(string(errors)); err == nil && count != "0" {
		return fmt.Sprintf("the file system has had %s errors: delete the pod, so that the file system is checked; see dmesg for the cause", count)
	}
	return ""
}
