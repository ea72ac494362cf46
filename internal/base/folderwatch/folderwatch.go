// Package folderwatch reports when something in a folder has changed and the changes have
// stopped. Components that follow files of the user call it.
package folderwatch

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// absent is how often a removed folder is looked for.
const absent = 5 * time.Second

// Start watches a folder, which must exist, until ctx is done. The channel gets a value
// when something has changed and then nothing for settle, because a program that copies a
// file writes it in many pieces. The channel is closed at the end. Start watches a
// folder, not a file, because editors replace files. If the kernel has no more watches to
// give, Start logs that and reports no changes; this is no reason for kedge not to run.
func Start(ctx context.Context, folder string, settle time.Duration, log *logrus.Entry) <-chan struct{} {
	return start(ctx, &watch{folder: folder, settle: settle, log: log})
}

// StartTree is Start for a folder and all folders below it, including those made later.
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
	changed := loop.NewChanges()
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
	w.log.Warnf("kedge does not see changes in %s until it is restarted: %v. If too many programs watch files, raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches", w.folder, err)
}

// add watches the file or folder with a name. It has no effect on one that is watched
// already.
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

func (w *watch) follow(ctx context.Context, changed loop.Changes) {
	timer := time.NewTimer(w.settle)
	timer.Stop()
	for gone := false; ; {
		select {
		case <-ctx.Done():
			return
		case event := <-w.watcher.Events:
			if w.tree && event.Has(fsnotify.Create) {
				_ = w.add(event.Name) // so that settle counts from the last write in there; an error shows up below
			}
			timer.Reset(w.settle)
		case <-w.watcher.Errors:
			// Events were lost: the kernel's queue was full.
			timer.Reset(w.settle)
		case <-timer.C:
			// Other folders may have the names by now.
			err, before := w.add(w.folder), gone
			if gone = errors.Is(err, fs.ErrNotExist); gone {
				timer.Reset(absent)
			} else if err != nil {
				w.warn(err)
			}
			if gone && before {
				continue
			}
			changed.Notify()
		}
	}
}
