package customresources

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// watchable is storage of which only the watches work. Each ends with its context, as those
// of upstream's storage do.
type watchable struct {
	storage.Interface
	watches chan *watch.RaceFreeFakeWatcher
}

func (s watchable) Watch(ctx context.Context, _ string, _ storage.ListOptions) (watch.Interface, error) {
	w := watch.NewRaceFreeFake()
	context.AfterFunc(ctx, w.Stop)
	s.watches <- w
	return w, nil
}

// TestQuietWatchesEnd checks which watches end. A watch of definitions ends a minute after the last
// definition, if its client wants bookmarks. All other watches go on.
func TestQuietWatchesEnd(t *testing.T) {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	for _, test := range []struct {
		name      string
		quiet     time.Duration
		bookmarks bool
		send      []watch.EventType
		ends      bool
	}{
		{"a definition", quietTime, true, []watch.EventType{watch.Added}, true},
		{"a definition and a bookmark", quietTime, true, []watch.EventType{watch.Modified, watch.Bookmark}, true},
		{"two definitions", quietTime, true, []watch.EventType{watch.Added, watch.Deleted, watch.Bookmark}, true},
		{"only a bookmark", quietTime, true, []watch.EventType{watch.Bookmark}, false},
		{"nothing", quietTime, true, nil, false},
		{"a client without bookmarks", quietTime, false, []watch.EventType{watch.Added}, false},
		{"another kind", 0, true, []watch.EventType{watch.Added}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				watches := make(chan *watch.RaceFreeFakeWatcher, 1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				options := storage.ListOptions{Predicate: storage.SelectionPredicate{AllowWatchBookmarks: test.bookmarks}}
				w, err := bookmarked{watchable{watches: watches}, test.quiet}.Watch(ctx, "/", options)
				if err != nil {
					t.Fatal(err)
				}
				from, received := <-watches, 0
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for range w.ResultChan() {
						received++
					}
				}()
				for _, kind := range test.send {
					time.Sleep(quietTime - time.Second)
					from.Action(kind, definition)
				}
				synctest.Wait()
				if received != len(test.send) {
					t.Errorf("the client got %d events of %d", received, len(test.send))
				}
				time.Sleep(quietTime + time.Second)
				synctest.Wait()
				select {
				case <-ended:
					if !test.ends {
						t.Error("the watch has ended")
					}
				default:
					if test.ends {
						t.Error("the watch goes on")
					}
				}
				cancel()
				<-ended
			})
		})
	}
}
