// Package staticpods protects the kubelet from irregular files in the folder of static pods. If
// somebody puts a FIFO there, the kubelet would never read the folder again. The kubelet package
// runs Guard beside the kubelet.
package staticpods

import (
	"context"
	"errors"
	"fmt"
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
)

// Guard runs until ctx ends. It reports each file in folder that is not a regular file once, in the
// log and by warn, and keeps the kubelet from waiting for it. The kubelet still reads the regular
// files in the folder.
//
// When inotify tells the kubelet of a file, the kubelet opens the file whatever its type
// (pkg/kubelet/config/file_linux.go, consumeWatchEvent). If it is a FIFO, the kubelet waits until
// somebody opens the other end, and learns of no other file in the meantime.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/config/file_linux.go sourceFile.consumeWatchEvent
func Guard(ctx context.Context, folder string, warn func(message string), log *logrus.Entry) {
	changed := folderwatch.Start(ctx, folder, settle, log)
	warned := map[string]bool{}
	for open := true; open; _, open = <-changed {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // folderwatch logs this error
		}
		for _, entry := range entries {
			// The kubelet skips these too.
			if entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
				continue
			}
			path := filepath.Join(folder, entry.Name())
			file, err := datadir.OpenRegular(path)
			if err == nil {
				_ = file.Close()
				delete(warned, path)
				continue
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if !warned[path] {
				message := fmt.Sprintf("A static pod cannot be read: %v", err)
				log.Warn(message)
				warn(message)
				warned[path] = true
			}
			release(ctx, path)
		}
	}
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
