package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Usage is how much of a volume is used.
type Usage struct {
	// In bytes.
	Total, Used, Free int64
	// All zero for a raw block volume.
	Inodes, InodesUsed, InodesFree int64
	// Fault says what is wrong with the volume, and what to do.
	Fault string
}

// Usage measures a volume that is mounted at path.
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

// fault is what is wrong with a volume that is mounted.
func (v *Volume) fault(there *mountPoint) string {
	if err := v.isThere(); err != nil {
		return err.Error()
	}
	if v.Kind == Quota && !enforcesProjects(v.Base) {
		return fmt.Sprintf("its size is not enforced any more: mount the disk of %s with prjquota again", v.Base)
	}
	if v.Kind != Image || v.Block {
		return ""
	}
	if slices.Contains(there.SuperOptions, "ro") {
		return "the file system is read-only after a fault: delete the pod, so that it is checked; dmesg says what happened"
	}
	errors, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(there.Source), "errors_count"))
	if count := strings.TrimSpace(string(errors)); err == nil && count != "0" {
		return fmt.Sprintf("the file system has had %s errors: delete the pod, so that it is checked; dmesg says what happened", count)
	}
	return ""
}
