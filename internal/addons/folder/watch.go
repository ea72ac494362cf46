package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long a change is left alone: who writes a file is not done with the
// first bytes, and what is not in it yet would be removed.
const settle = time.Second

// watch sends on changed when something in a folder, or below it, is no longer what
// it was, until ctx ends.
func watch(ctx context.Context, folder string) (changed <-chan struct{}, err error) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = addAll(watcher, folder); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: raise fs.inotify.max_user_instances and fs.inotify.max_user_watches by sysctl", err)
		}
		return nil, fmt.Errorf("watch folder: %w", err)
	}
	changes := make(chan struct{}, 1)
	go func() {
		defer watcher.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-watcher.Events:
				if event.Has(fsnotify.Create) {
					if info, err := os.Lstat(event.Name); err == nil && info.IsDir() {
						_ = addAll(watcher, event.Name) // a folder that is gone again
					}
				}
				if event.Op == fsnotify.Chmod {
					continue
				}
			case <-watcher.Errors: // events were lost
			}
			select {
			case changes <- struct{}{}:
			default: // it will be looked at anyway
			}
		}
	}()
	return changes, nil
}

// addAll watches a folder and those below it.
func addAll(watcher *fsnotify.Watcher, folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return watcher.Add(path)
	})
}
