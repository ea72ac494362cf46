// Package folderwatch tells when something in a folder has changed, and has come
// to rest since. Components that follow files of the user call it.
package folderwatch

import (
	"context"
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
	changed := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(folder); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		log.Warnf("changes in %s are not seen until kedge is started again: %v; if too many programs watch files, raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches", folder, err)
		context.AfterFunc(ctx, func() { close(changed) })
		return changed
	}
	go func() {
		defer close(changed)
		defer watcher.Close()
		follow(ctx, watcher, folder, settle, changed)
	}()
	return changed
}

func follow(ctx context.Context, watcher *fsnotify.Watcher, folder string, settle time.Duration, changed chan<- struct{}) {
	timer := time.NewTimer(settle)
	timer.Stop()
	for gone := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			timer.Reset(settle)
		case <-watcher.Errors:
			// Events were lost: the kernel's queue was full.
			timer.Reset(settle)
		case <-timer.C:
			// By now another folder may have the name.
			before := gone
			if gone = watcher.Add(folder) != nil; gone {
				timer.Reset(absent)
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
