// Package staticpods tells users which files in the folder of static pods the kubelet cannot use, and
// protects the kubelet from irregular ones. If somebody puts a FIFO there, the kubelet would never read
// the folder again. The kubelet package runs a Guard beside the kubelet.
package staticpods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/folderwatch"
)

const (
	// settle is how long the folder must be unchanged before it is read.
	settle = 200 * time.Millisecond
	// patience is how long the kubelet may take to open a FIFO after a change.
	patience = 5 * time.Second
	retry    = 50 * time.Millisecond
	// renewal is how often Events are written again, because the API deletes them after an hour.
	renewal = 30 * time.Minute
	// maxSize is the size in bytes of the largest file that the kubelet reads.
	//
	//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/config/common.go maxConfigLength
	maxSize = 10 << 20
)

// Guard looks after the folder of static pods.
type Guard struct {
	Folder string
	// Check returns why the kubelet refuses the content of a file.
	Check func(content []byte) error
	// Warn writes an Event.
	Warn func(message string)
	Log  *logrus.Entry
	// told has the last warning about each file, by its path.
	told map[string]string
}

// Run runs until ctx ends. It warns of each file from which the kubelet can run no pod, and keeps the
// kubelet from waiting for files that are not regular. The kubelet still reads the other files.
//
// When inotify tells the kubelet of a file, the kubelet opens the file whatever its type
// (pkg/kubelet/config/file_linux.go, consumeWatchEvent). If it is a FIFO, the kubelet waits until
// somebody opens the other end, and learns of no other file in the meantime.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/config/file_linux.go sourceFile.consumeWatchEvent
func (g *Guard) Run(ctx context.Context) {
	changed := folderwatch.Start(ctx, g.Folder, settle, g.Log)
	g.look(ctx)
	for {
		var due <-chan time.Time
		if len(g.told) > 0 {
			due = time.After(renewal)
		}
		select {
		case _, open := <-changed:
			if !open {
				return
			}
			g.look(ctx)
		case <-due:
			for _, message := range g.told {
				g.Warn(message)
			}
		}
	}
}

// look reads the folder, and warns of what is new.
func (g *Guard) look(ctx context.Context) {
	entries, err := os.ReadDir(g.Folder)
	if err != nil {
		return // folderwatch logs this error
	}
	before := g.told
	g.told = map[string]string{}
	for _, entry := range entries {
		// The kubelet skips these too.
		if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		path := filepath.Join(g.Folder, entry.Name())
		err := g.check(path)
		if errors.Is(err, fs.ErrNotExist) && entry.Type() == fs.ModeSymlink {
			err = fmt.Errorf("%s: this is a link to a file that does not exist", path)
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		message := fmt.Sprintf("A static pod cannot run: %v. Correct the file, or remove it from the folder", err)
		if g.told[path] = message; before[path] != message {
			g.Log.Warn(message)
			g.Warn(message)
		}
		release(ctx, path)
	}
}

// check returns why the kubelet runs no pod from a file, or nil.
func (g *Guard) check(path string) error {
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err == nil && len(content) > maxSize {
		err = fmt.Errorf("the kubelet reads at most %d MiB of a file", maxSize>>20)
	}
	if err == nil {
		err = g.Check(content)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// release opens the writing end of a FIFO, so that a reader that opens it within patience does not
// block. It ignores other files.
func release(ctx context.Context, path string) {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		return
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(retry) {
		end, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(end)
		}
		// ENXIO means that nobody has the FIFO open for reading.
		if !errors.Is(err, unix.ENXIO) {
			return
		}
	}
}
