package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestSnapshot saves while others write, changes objects, and restores beside the
// present data. Everything that was acknowledged before the snapshot is back, and
// nothing newer. Clients that watched or read before must list again.
func TestSnapshot(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	put := func(key, value string) int64 {
		t.Helper()
		answer, err := r.Put(t.Context(), key, value)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	create := func(key, value string) {
		t.Helper()
		if _, err := r.backend.Create(t.Context(), key, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	create("/registry/pods/a", "before")
	create("/registry/events/e", "deferred")

	// This client writes meanwhile.
	var acknowledged, stop atomic.Int64
	begun, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for stop.Load() == 0 {
			key := fmt.Sprintf("/registry/busy/%08d", acknowledged.Load())
			if _, err := r.backend.Create(context.Background(), key, make([]byte, 1000), 0); err != nil {
				t.Error(err)
				return
			}
			if acknowledged.Add(1) == 10 {
				close(begun)
			}
		}
	}()
	<-begun
	file := filepath.Join(t.TempDir(), "saved")
	atLeast := acknowledged.Load()
	revision, err := r.Save(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	stop.Store(1)
	<-stopped

	create("/registry/pods/b", "after")
	_, kv, _ := r.backend.Get(t.Context(), "/registry/pods/a", 0, false)
	if _, _, ok, err := r.backend.Update(t.Context(), "/registry/pods/a", []byte("after"), kv.ModRevision, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	last := put("compact_rev_key", "x")
	if revision >= last {
		t.Errorf("saved at revision %d, want less than %d, which is later", revision, last)
	}
	r.stop(t)

	d := New(config(folder))
	handedOut, err := d.LastRevision(t.Context())
	if err != nil || handedOut < last {
		t.Fatalf("the last revision was %d, LastRevision says %d, %v", last, handedOut, err)
	}
	above := handedOut + 1e9
	restoring, kept := filepath.Join(folder, "restoring"), filepath.Join(folder, "kept")
	for _, made := range []string{restoring, kept} {
		if err := os.Mkdir(made, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Prepare(t.Context(), file, restoring, above); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(restoring, "db", "*")); len(left) != 1 {
		t.Errorf("got files %v, want one", left)
	}
	for range 2 { // the second time as after an interruption
		if err := d.Commit(t.Context(), restoring, kept); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(kept, "db", "state.db")); err != nil {
		t.Errorf("the earlier database was not kept: %v", err)
	}

	r = run(t, folder)
	for key, want := range map[string]string{"/registry/pods/a": "before", "/registry/events/e": "deferred", "/registry/pods/b": ""} {
		answer, err := r.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(answer.Kvs) > 0 {
			got = string(answer.Kvs[0].Value)
		}
		if got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	busy, err := r.Get(t.Context(), "/registry/busy/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || busy.Count < atLeast || busy.Count > acknowledged.Load() {
		t.Errorf("%d keys, of %d that were written before and %d in all, %v", busy.Count, atLeast, acknowledged.Load(), err)
	}
	if now := busy.Header.Revision; now < above {
		t.Errorf("goes on at %d, want above %d", now, above)
	}
	// Every client that watched, up to the very last revision, is told to list
	// again.
	for _, from := range []int64{revision, last, above - 1} {
		watched := <-r.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(from))
		if !errors.Is(watched.Err(), rpctypes.ErrCompacted) {
			t.Errorf("a watch from %d: %v", from, watched.Err())
		}
	}
	if _, err := r.Get(t.Context(), "/registry/pods/a", clientv3.WithRev(last)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read at %d: %v", last, err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	file := filepath.Join(t.TempDir(), "saved")
	if _, err := r.Save(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	d := New(config(folder))
	d.version = "v1.35.0+kedge.1"
	err := d.Prepare(t.Context(), file, t.TempDir(), 1)
	if err == nil || !strings.Contains(err.Error(), "is too old to read it") {
		t.Errorf("an older kedge: %v", err)
	}
	if err := os.WriteFile(file, []byte(strings.Repeat("no database", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(config(folder)).Prepare(t.Context(), file, t.TempDir(), 1); !errors.Is(err, errDamaged) {
		t.Errorf("no database: %v", err)
	}
}

// TestSaveToFullDisk wants an error, and no damage.
func TestSaveToFullDisk(t *testing.T) {
	if !privately(t) {
		return
	}
	r := run(t, shortDir(t))
	for i := range 10 {
		if _, err := r.backend.Create(t.Context(), fmt.Sprint("/registry/large/", i), make([]byte, 100_000), 0); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.Save(t.Context(), filepath.Join(tmpfs(t, "size=256k"), "saved"))
	if !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	if _, err := r.backend.Create(t.Context(), "/registry/after", nil, 0); err != nil {
		t.Errorf("a write after that: %v", err)
	}
}
