package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/loop"
)

const (
	// statusFile is the file in which the CRI keeps the status of a container, in the container's folder.
	//
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/store/container/status.go statusStorage.UpdateSync StoreStatus
	//upstream:relies-on github.com/containerd/continuity/ioutils.go atomicWriteFile
	statusFile = "status"
	// enough is the free space, in bytes, at which statuses go to the disk.
	enough = 1 << 20
	// spacePause is the time between two looks for space, and coverPause the one between two looks for a status that
	// containerd has written.
	spacePause = 10 * time.Second
	coverPause = 100 * time.Millisecond
)

// endings lets containers end although nothing can be written to the disk. For containerd, a container runs until it has
// written that the container has ended. On a full disk the kubelet would therefore wait for the end of a pod, would evict
// no other pod meanwhile, and nobody would free space. If a status cannot be written, endings covers the folder of the
// container with one in memory. containerd tries again after a second, and then succeeds. When the disk has space again,
// the status goes there.
type endings struct {
	log *logrus.Entry
	// containers is where the CRI has a folder for each container. memory is where endings has one for each container
	// whose status could not be written. A reboot removes it, and ends the containers too.
	containers, memory string
	wake               chan struct{}
	// covered has the containers whose folder is covered, with the status that could not be replaced.
	covered map[string][]byte

	mu        sync.Mutex
	unwritten []string // guarded by mu: the containers whose status could not be written
}

// newEndings is for a containerd with the folders root and state.
func newEndings(log *logrus.Entry, root, state string) *endings {
	return &endings{
		log: log, containers: filepath.Join(root, criPlugin, criFolders["container"]), memory: filepath.Join(state, "ended"),
		wake: make(chan struct{}, 1), covered: map[string][]byte{},
	}
}

// Levels implements logrus.Hook.
func (e *endings) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

// Fire implements logrus.Hook. It looks for the errors of containerd about statuses that it could not write.
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/events.go criService.startContainerExitMonitor criService.handleContainerExit
func (e *endings) Fire(entry *logrus.Entry) error {
	cause, _ := entry.Data[logrus.ErrorKey].(error)
	var failed *fs.PathError
	if !errors.As(cause, &failed) {
		return nil
	}
	folder, name := filepath.Split(failed.Path)
	if filepath.Dir(filepath.Clean(folder)) != e.containers || !strings.HasPrefix(name, ".tmp-"+statusFile) {
		return nil
	}
	e.mu.Lock()
	e.unwritten = append(e.unwritten, filepath.Base(folder))
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return nil
}

// begin is for the time before containerd reads the statuses. It moves what a crash of kedge has left in memory to the disk.
func (e *endings) begin() {
	for _, id := range e.held() {
		_ = e.toDisk(id) // run tries again, and logs why it fails
	}
}

// run moves statuses until ctx ends.
func (e *endings) run(ctx context.Context) {
	loop.Loop{Log: e.log, Wake: e.wake, Meanwhile: "the end of some containers is only in memory"}.Run(ctx, func(context.Context) (loop.Next, error) { return e.move() })
}

// move covers folders, uncovers those where containerd has written, and moves statuses to the disk if it has space.
func (e *endings) move() (next loop.Next, err error) {
	e.mu.Lock()
	unwritten := e.unwritten
	e.unwritten = nil
	e.mu.Unlock()
	var faults []error
	for _, id := range unwritten {
		if e.covered[id] == nil {
			faults = append(faults, e.cover(id))
		}
	}
	for id, before := range e.covered {
		if status, err := os.ReadFile(e.inMemory(id)); err != nil || !bytes.Equal(status, before) {
			delete(e.covered, id)
			faults = append(faults, err, e.uncover(id))
		}
	}
	held, space := e.held(), e.hasSpace()
	for _, id := range held {
		if space && e.covered[id] == nil {
			faults = append(faults, e.toDisk(id))
		}
	}
	switch {
	case len(e.covered) > 0:
		next.After = coverPause
	case len(held) > 0:
		next.After = spacePause
	}
	return next, errors.Join(faults...)
}

// held returns the containers whose status is in memory.
func (e *endings) held() (ids []string) {
	entries, _ := os.ReadDir(e.memory) // the folder is made for the first one
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids
}

func (e *endings) onDisk(id string) string   { return filepath.Join(e.containers, id, statusFile) }
func (e *endings) inMemory(id string) string { return filepath.Join(e.memory, id, statusFile) }

// cover mounts a folder in memory over the folder of a container. It has the same status. If the container has been removed,
// cover does nothing.
func (e *endings) cover(id string) error {
	status, err := os.ReadFile(e.onDisk(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	folder := filepath.Dir(e.inMemory(id))
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err == nil {
		err = os.WriteFile(e.inMemory(id), status, 0o600)
	}
	if err == nil {
		err = unix.Mount(folder, filepath.Join(e.containers, id), "", unix.MS_BIND, "")
	}
	if err != nil {
		return fmt.Errorf("keep the status of container %s in memory: %w", id, err)
	}
	e.covered[id] = status
	return nil
}

// uncover removes the mount from the folder of a container. The folder in memory keeps the status. Without a mount, uncover does
// nothing.
func (e *endings) uncover(id string) error {
	err := unix.Unmount(filepath.Join(e.containers, id), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("uncover the folder of container %s: %w", id, err)
	}
	return nil
}

// hasSpace tells whether statuses can go to the disk.
func (e *endings) hasSpace() bool {
	var disk unix.Statfs_t
	err := unix.Statfs(e.containers, &disk)
	return err == nil && disk.Bavail*uint64(disk.Bsize) >= enough
}

// toDisk writes the status of a container to the disk, and removes it from memory. If the container has been removed, toDisk
// only removes the status from memory.
func (e *endings) toDisk(id string) error {
	if err := e.uncover(id); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(e.containers, id)); err == nil {
		status, err := os.ReadFile(e.inMemory(id))
		if err == nil {
			err = datadir.WriteFile(e.onDisk(id), status, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the status of container %s: %w", id, err)
		}
	}
	if err := os.RemoveAll(filepath.Join(e.memory, id)); err != nil {
		return fmt.Errorf("forget the status of container %s in memory: %w", id, err)
	}
	return nil
}
