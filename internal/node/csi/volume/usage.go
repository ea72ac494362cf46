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
}

// Fault is something that is wrong with a volume.
type Fault struct {
	// Reason is one word in CamelCase, for programs.
	Reason string
	// Message says what is wrong and what to do.
	Message string
	// Unusable tells whether no pod can use the volume.
	Unusable bool
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
	if v.Block {
		return &Usage{Total: v.Size}, nil
	}
	var usage Usage
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

// Fault returns what is wrong with a volume, or nil. If the volume is mounted at path, it also looks
// at the file system.
func (s *Store) Fault(name, path string) (*Fault, error) {
	v, err := s.Get(name)
	if err != nil {
		return nil, err
	}
	if err := v.isThere(); err != nil {
		return &Fault{Reason: "DataMissing", Message: err.Error(), Unusable: true}, nil
	}
	if v.Kind == Quota && !enforcesProjects(v.Base) {
		return &Fault{
			Reason:  "SizeNotEnforced",
			Message: fmt.Sprintf("the size of the volume is no longer enforced: mount the disk of %s with the option prjquota", v.Base),
		}, nil
	}
	if v.Kind != Image || v.Block || path == "" {
		return nil, nil
	}
	there, err := mountAt(path)
	if err != nil || there == nil {
		return nil, err
	}
	if slices.Contains(there.SuperOptions, "ro") {
		return &Fault{
			Reason:  "FileSystemReadOnly",
			Message: "the file system became read-only after an error: delete the pod, so that the file system is checked; see dmesg for the cause",
		}, nil
	}
	errors, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(there.Source), "errors_count"))
	if count := strings.TrimSpace(string(errors)); err == nil && count != "0" {
		return &Fault{
			Reason:  "FileSystemErrors",
			Message: fmt.Sprintf("the file system has had %s errors: delete the pod, so that the file system is checked; see dmesg for the cause", count),
		}, nil
	}
	return nil, nil
}
