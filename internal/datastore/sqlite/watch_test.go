package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Progress to a revision comes after all events up to it, because the API server
// then takes its cache to be complete.
func TestProgressComesAfterEvents(t *testing.T) {
	r := run(t, shortDir(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch := r.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	<-watch
	var seen, progress int64
	for i := range 20 {
		// Changes of other keys keep the polling busy.
		var others sync.WaitGroup
		others.Go(func() { create(r.Client, fmt.Sprintf("/registry/nodes/%d", i), "x") })
		made, err := create(r.Client, fmt.Sprintf("/registry/pods/%d", i), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.RequestProgress(ctx); err != nil {
			t.Fatal(err)
		}
		for progress < made.Header.Revision {
			response := <-watch
			if response.IsProgressNotify() {
				progress = response.Header.Revision
				continue
			}
			seen = response.Events[len(response.Events)-1].Kv.ModRevision
		}
		if seen < made.Header.Revision {
			t.Fatalf("progress to %d before the event of %d", progress, made.Header.Revision)
		}
		others.Wait()
	}
}

// Watches that begin while others write miss nothing and get nothing twice.
func TestWatchJoinsPastAndPresent(t *testing.T) {
	r := run(t, shortDir(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const writes = 300
	first, err := create(r.Client, "/registry/a/first", "x")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for i := range writes {
			if _, err := create(r.Client, fmt.Sprintf("/registry/a/%d", i), "x"); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		all.Go(func() {
			last := first.Header.Revision
			got := 0
			for response := range r.Watch(ctx, "/registry/a/", clientv3.WithPrefix(), clientv3.WithRev(last+1)) {
				for _, event := range response.Events {
					if event.Kv.ModRevision <= last {
						t.Errorf("revision %d after %d", event.Kv.ModRevision, last)
					}
					last = event.Kv.ModRevision
					got++
				}
				if got >= writes {
					return
				}
			}
		})
	}
	all.Wait()
}
