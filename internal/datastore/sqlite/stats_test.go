package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/internal/datastore"
)

func TestStats(t *testing.T) {
	d := New(config(shortDir(t)))
	if stats, health := d.Stats(t.Context()), d.Health(t.Context()); stats.Kind != "sqlite" || stats.Slow != nil || health != (datastore.Health{}) {
		t.Errorf("before it runs: %+v, %+v", stats, health)
	}
	r := run(t, shortDir(t))
	before := r.Stats(t.Context())
	for i := range 10 {
		if _, err := create(r.Client, fmt.Sprint("/registry/", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	stats := r.Stats(t.Context())
	if stats.Place != config(r.folder).Dir || stats.Used == 0 || stats.Size < stats.Used || stats.Disk == nil || stats.Disk.Size == 0 {
		t.Errorf("got %+v", stats)
	}
	if n := stats.Recent.Count - before.Recent.Count; n != 10 || stats.Recent.P99 == 0 || stats.Slow.Count != 0 {
		t.Errorf("got %d commits, want 10: %+v", n, stats.Recent)
	}
	if health := r.Health(t.Context()); health.Fault != "" {
		t.Errorf("fault %q", health.Fault)
	}
	r.stop(t)
	if after := r.Stats(t.Context()); after.Kind != "sqlite" || after.Size == 0 {
		t.Errorf("after the stop: got stats %+v, want a size", after)
	}
}

// The file gets smaller when much of its content was deleted. The rest is
// unchanged.
func TestShrinks(t *testing.T) {
	r := run(t, shortDir(t))
	each := func(do func(key string) error) {
		var running sync.WaitGroup
		for worker := range 50 {
			running.Go(func() {
				for i := worker; i < 2000; i += 50 {
					if err := do(fmt.Sprint("/registry/large/", i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		running.Wait()
	}
	if _, err := create(r.Client, "/registry/small", "kept"); err != nil {
		t.Fatal(err)
	}
	value := make([]byte, 60_000)
	each(func(key string) error {
		_, err := r.backend.Create(context.Background(), key, value, 0)
		return err
	})
	large := r.Stats(t.Context())
	compact := func() {
		revision, _ := r.backend.CurrentRevision(t.Context())
		if _, err := r.backend.Compact(t.Context(), revision); err != nil {
			t.Fatal(err)
		}
	}
	each(func(key string) error {
		_, _, _, err := r.backend.Delete(context.Background(), key, 0)
		return err
	})
	compact()
	// The writer is busy with that. Later changes wait.
	if _, err := create(r.Client, "/registry/later", "x"); err != nil {
		t.Fatal(err)
	}
	small := r.Stats(t.Context())
	if large.Size < shrinkWorth || small.Size > large.Size/4 {
		t.Errorf("%d bytes became %d", large.Size, small.Size)
	}
	for range 2 { // the second time after a restart
		for key, want := range map[string]int{"/registry/small": 1, "/registry/later": 1, "/registry/large/7": 0} {
			if _, kvs, err := r.backend.List(t.Context(), key, "", 0, 0, false); err != nil || len(kvs) != want {
				t.Errorf("%s: got %v, %v, want %d keys", key, kvs, err, want)
			}
		}
		r.stop(t)
		r = run(t, r.folder)
	}
}
