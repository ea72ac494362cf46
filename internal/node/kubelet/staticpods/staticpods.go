// Package staticpods keeps the folder of static pods in working order: the kubelet
// stops looking at the folder for good when somebody puts a FIFO there. The kubelet
// package runs Guard beside the kubelet.
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
	// settle is how long after a change the folder is looked at.
	settle = 200 * time.Millisecond
	// patience is how long after a change the kubelet may take to open a FIFO.
	patience = 5 * time.Second
	retry    = 50 * time.Millisecond
)

// Guard tells of each file in folder that is not a regular one, once, in the log and
// by warn, and keeps the kubelet from waiting for it, until ctx ends. The kubelet
// reads the regular files beside it.
//
// When the kubelet hears by inotify of a file, it opens the file whatever that is
// (pkg/kubelet/config/file_linux.go, consumeWatchEvent). With a FIFO it waits until
// somebody opens the other end, and hears of no other file meanwhile.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/config/file_linux.go sourceFile.consumeWatchEvent
func Guard(ctx context.Context, folder string, warn func(message string), log *logrus.Entry) {
	changed := folderwatch.Start(ctx, folder, settle, log)
	warned := map[string]bool{}
	for open := true; open; _, open = <-changed {
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue // folderwatch tells
		}
		for _, entry := range entries {
			// The kubelet passes over these too.
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
				message := fmt.Sprintf("A static pod is not read: %v", err)
				log.Warn(message)
				warn(message)
				warned[path] = true
			}
			release(ctx, path)
		}
	}
}

// release lets a reader of a FIFO read its end, if one comes within patience. It does
// nothing with other files.
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
		// ENXIO says that nobody reads.
		if !errors.Is(err, unix.ENXIO) {
			return
		}
	}
}
