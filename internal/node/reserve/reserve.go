// Package reserve keeps some of a node's disk for the time when the disk is full. A pod can fill it within a second, long
// before the kubelet looks. Evicting the pod needs a little space: for the status of the pod in the datastore, and for the
// folders to which the kubelet moves what it removes. Without that, the disk would stay full until somebody frees space by hand.
//
// The reserve is a folder with a few files. When the disk is full, the component removes one of them at each turn, so that
// a pod that takes this space too does not have all of it at once. It makes them anew when the disk has plenty of space.
package reserve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

// Name is the component's name.
const Name = "disk-reserve"

const (
	// pieces and pieceSize are the files of the reserve.
	pieces    = 8
	pieceSize = 8 << 20
	// turn is how often the disk is looked at. The reserve lasts for some minutes, because the kubelet learns only once a
	// minute how much a pod's volumes use. Until then it evicts other pods.
	turn = 20 * time.Second
	// A disk is full if a file with probe bytes has no room. That is tried only if few bytes are free for every user. How many
	// root can write then, no file system tells. A disk has plenty of space if a tenth of it is free beside the reserve: the kubelet
	// evicts pods at a twentieth.
	probe = 1 << 20
	few   = 4 * pieceSize
	tenth = 10
)

// reserve is that of one disk.
type reserve struct {
	folder string
	log    *logrus.Entry
}

// New returns the component of a node. The folders are those into which pods and kedge write. Each disk that has one of
// them has a reserve there.
func New(folders ...string) component.Component {
	log := logrus.WithField("component", Name)
	return component.Func(Name, func(ctx context.Context, ready func()) error {
		ready()
		loop.Loop{Log: log, Quiet: unsupported}.Run(ctx, func(context.Context) (loop.Next, error) {
			return loop.Next{After: turn}, lookAtAll(folders, log)
		})
		return nil
	})
}

// lookAtAll looks at the disk of each folder, once for each disk.
func lookAtAll(folders []string, log *logrus.Entry) error {
	seen := map[uint64]bool{}
	var faults []error
	for _, folder := range folders {
		var info unix.Stat_t
		if err := unix.Stat(folder, &info); err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // the kubelet makes its own
				faults = append(faults, fmt.Errorf("look at %s: %w", folder, err))
			}
			continue
		}
		if device := uint64(info.Dev); !seen[device] {
			seen[device] = true
			r := &reserve{folder: filepath.Join(folder, "reserve"), log: log}
			faults = append(faults, r.look())
		}
	}
	return errors.Join(faults...)
}

// unsupported tells whether a file system cannot reserve space, such as ZFS. Then there is no reserve.
func unsupported(err error) bool { return errors.Is(err, unix.EOPNOTSUPP) }

// look compares the disk with the reserve, and changes the reserve if it has to.
func (r *reserve) look() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.folder), &disk); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.folder, err)
	}
	if disk.Type == unix.TMPFS_MAGIC { // it is memory
		return nil
	}
	var there, missing []string
	for i := range pieces {
		path := filepath.Join(r.folder, strconv.Itoa(i))
		if info, err := os.Stat(path); err == nil && info.Size() == pieceSize {
			there = append(there, path)
		} else {
			missing = append(missing, path)
		}
	}
	free, size := disk.Bavail*uint64(disk.Bsize), disk.Blocks*uint64(disk.Bsize)
	switch {
	case free < few && len(there) > 0:
		err := take(filepath.Join(r.folder, "probe"), probe)
		if err == nil {
			return os.Remove(filepath.Join(r.folder, "probe"))
		}
		if errors.Is(err, unix.ENOSPC) {
			return r.give(there)
		}
		return err
	case len(missing) > 0 && free > size/tenth+uint64(len(missing))*pieceSize:
		for _, path := range missing {
			if err := take(path, pieceSize); err != nil {
				return err
			}
		}
	}
	return nil
}

// give removes the first of the files.
func (r *reserve) give(there []string) error {
	if err := os.Remove(there[0]); err != nil {
		return fmt.Errorf("free space on a full disk: %w", err)
	}
	r.log.Warnf("The disk of %s is full. kedge frees %d MiB of its reserve, so that pods can be evicted. %d MiB of the reserve are left", r.folder, pieceSize>>20, (len(there)-1)*pieceSize>>20)
	return nil
}

// take makes a file. One of another size, which a crash has left, is made anew.
func take(path string, size int64) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = allocate(path, size)
	}
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("reserve space on the disk: %w", err)
	}
	return nil
}

func allocate(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, size), file.Close())
}
