package containerd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// reserved is how many bytes each database of containerd may grow on a full disk.
const reserved = 4 << 20

// reserve gives the databases of containerd disk space before they need it, so that containers can be removed on a full
// disk. Removing a container writes to them, and their files have parts without disk space. containerd must have opened
// the databases before. On a file system that cannot give space in advance, reserve does nothing.
//
//upstream:relies-on github.com/containerd/containerd/v2/plugins/metadata/plugin.go init
//upstream:relies-on github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlay.go NewSnapshotter
func reserve(root string) error {
	var faults []error
	for _, pattern := range []string{"io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.*/metadata.db"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		faults = append(faults, err)
		for _, file := range files {
			faults = append(faults, reserveFor(file))
		}
	}
	return errors.Join(faults...)
}

func reserveFor(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+reserved)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("reserve disk space for %s: %w", file, err)
	}
	return nil
}
