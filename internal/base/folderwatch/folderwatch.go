// Package folderwatch tells when something in a folder has changed, and has come
// to rest since. Components that follow files of the user call it.
package folderwatch

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
)

// absent is how often a folder is looked for that was removed.
const absent = 5 * time.Second

// Start watches a folder, which must be there, until ctx is done. The channel gets
// a value when nothing has happened in the folder for settle after a change: who
// copies a file writes it in many pieces. It is closed at the end. A folder, not a
// file, since editors replace files. Where the kernel has no more watches to give,
// that is logged, and no change is seen: it is no reason not to run.
func Start(ctx context.Context, folder string, settle time.Duration, log *logrus.Entry) <-chan struct{} {
	return start(ctx, &watch{folder: folder, settle: settle, log: log})
}

// StartTree is Start for a folder and those below it, also those made later.
func StartTree(ctx context.Context, folder string, settle time.Duration, log *logrus.Entry) <-chan struct{} {
	return start(ctx, &watch{folder: folder, tree: true, settle: settle, log: log})
}

type watch struct {
	folder  string
	tree    bool
	settle  time.Duration
	log     *logrus.Entry
	watcher *fsnotify.Watcher
}

func start(ctx context.Context, w *watch) <-chan struct{} {
	changed := make(chan struct{}, 1)
	var err error
	w.watcher, err = fsnotify.NewWatcher()
	if err == nil {
		if err = w.add(w.folder); err != nil {
			w.watcher.Close()
		}
	}
	if err != nil {
		w.warn(err)
		context.AfterFunc(ctx, func() { close(changed) })
		return changed
	}
	go func() {
		defer close(changed)
		defer w.watcher.Close()
		w.follow(ctx, changed)
	}()
	return changed
}

func (w *watch) warn(err error) {
	w.log.Warnf("changes in %s are not seen until kedge is started again: %v; if too many programs watch files, raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches", w.folder, err)
}

// add watches what has a name; what is watched already stays so.
func (w *watch) add(name string) error {
	if !w.tree {
		return w.watcher.Add(name)
	}
	return filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return w.watcher.Add(path)
	})
}

func (w *watch) follow(ctx context.Context, changed chan<- struct{}) {
	timer := time.NewTimer(w.settle)
	timer.Stop()
	for gone := false; ; {
		select {
		case <-ctx.Done():
			return
		case event := <-w.watcher.Events:
			if w.tree && event.Has(fsnotify.Create) {
				_ = w.add(event.Name) // so that what is written there is waited for; a fault is seen below
			}
			timer.Reset(w.settle)
		case <-w.watcher.Errors:
			// Events were lost: the kernel's queue was full.
			timer.Reset(w.settle)
		case <-timer.C:
			// By now other folders may have the names.
			err, before := w.add(w.folder), gone
			if gone = errors.Is(err, fs.ErrNotExist); gone {
				timer.Reset(absent)
			} else if err != nil {
				w.warn(err)
			}
			if gone && before {
				continue
			}
			select {
			case changed <- struct{}{}:
			default: // the last one has not been taken yet
			}
		}
	}
}
