package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/mattn/go-sqlite3"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var _ datastore.Datastore = (*Datastore)(nil)

// create, update and remove are the transactions of the API server
// (k8s.io/apiserver/pkg/storage/etcd3/store.go, etcd/client/v3/kubernetes).
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/store.go store.Create store.GuaranteedUpdate store.conditionalDelete
//upstream:relies-on go.etcd.io/etcd/client/v3/kubernetes/client.go Client.OptimisticPut Client.OptimisticDelete
func create(c *clientv3.Client, key, value string) (*clientv3.TxnResponse, error) {
	return c.Txn(context.Background()).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value)).Commit()
}

func update(c *clientv3.Client, key, value string, revision int64) (*clientv3.TxnResponse, error) {
	return c.Txn(context.Background()).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpPut(key, value)).
		Else(clientv3.OpGet(key)).Commit()
}

func remove(c *clientv3.Client, key string, revision int64) (*clientv3.TxnResponse, error) {
	return c.Txn(context.Background()).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
		Then(clientv3.OpDelete(key)).
		Else(clientv3.OpGet(key)).Commit()
}

func TestTransactions(t *testing.T) {
	r := run(t, shortDir(t))
	const key = "/registry/pods/default/a"
	created, err := create(r.Client, key, "1")
	if err != nil || !created.Succeeded {
		t.Fatalf("create: %v %v", created, err)
	}
	if again, err := create(r.Client, key, "2"); err != nil || again.Succeeded {
		t.Errorf("create a key that exists: got %v, %v, want it refused", again, err)
	}
	updated, err := update(r.Client, key, "2", created.Header.Revision)
	if err != nil || !updated.Succeeded || updated.Header.Revision <= created.Header.Revision {
		t.Fatalf("update: %v %v", updated, err)
	}
	stale, err := update(r.Client, key, "3", created.Header.Revision)
	if err != nil || stale.Succeeded {
		t.Fatalf("an update of an old revision: %v %v", stale, err)
	}
	if kvs := stale.Responses[0].GetResponseRange().Kvs; len(kvs) != 1 || string(kvs[0].Value) != "2" {
		t.Errorf("a conflict answers %v", kvs)
	}
	if old, err := r.Get(context.Background(), key, clientv3.WithRev(created.Header.Revision)); err != nil || string(old.Kvs[0].Value) != "1" {
		t.Errorf("the old revision: %v %v", old, err)
	}
	if stale, err := remove(r.Client, key, created.Header.Revision); err != nil || stale.Succeeded {
		t.Errorf("a delete of an old revision: %v %v", stale, err)
	}
	if removed, err := remove(r.Client, key, updated.Header.Revision); err != nil || !removed.Succeeded {
		t.Errorf("delete: %v %v", removed, err)
	}
	if gone, err := r.Get(context.Background(), key); err != nil || len(gone.Kvs) != 0 {
		t.Errorf("after the delete: got %v, %v, want no key", gone, err)
	}
	if again, err := create(r.Client, key, "4"); err != nil || !again.Succeeded {
		t.Errorf("create after delete: %v %v", again, err)
	}
}

// TestPutAndDelete does what etcdctl does, with arbitrary keys.
func TestPutAndDelete(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	ctx := t.Context()
	put := func(key, value, before string) {
		t.Helper()
		answer, err := r.Put(ctx, key, value, clientv3.WithPrevKV())
		if err != nil {
			t.Fatal(err)
		}
		if was := answer.PrevKv; was == nil && before != "" || was != nil && string(was.Value) != before {
			t.Errorf("put %s: it was %v, want %q", key, was, before)
		}
	}
	has := func(want ...string) {
		t.Helper()
		list, err := r.Get(ctx, "", clientv3.WithFromKey())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, kv := range list.Kvs {
			if key := string(kv.Key); key != compactKey && key != server.HealthKey {
				got = append(got, key+"="+string(kv.Value))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("there are %q, want %q", got, want)
		}
	}
	remove := func(deleted int64, key string, options ...clientv3.OpOption) {
		t.Helper()
		answer, err := r.Delete(ctx, key, append(options, clientv3.WithPrevKV())...)
		if err != nil || answer.Deleted != deleted || int64(len(answer.PrevKvs)) != deleted {
			t.Errorf("delete %s: %v, %v, want %d", key, answer, err, deleted)
		}
	}
	put("/a", "1", "")
	put("/b/1", "1", "")
	put("/a", "2", "1")
	put("/b/2", "2", "")
	put("other", "x", "")
	put("other", "y", "x")
	has("/a=2", "/b/1=1", "/b/2=2", "other=y")
	remove(1, "/a")
	remove(0, "/a")
	remove(0, compactKey)
	has("/b/1=1", "/b/2=2", "other=y")
	remove(2, "/b/", clientv3.WithPrefix())
	has("other=y")
	put("/a", "3", "")
	remove(3, "", clientv3.WithFromKey()) // and the health key
	has()
	// kine's own row still exists: it is known which revisions are compacted.
	put("/a", "4", "")
	put("/a", "5", "4")
	now, err := r.Get(ctx, "/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Compact(ctx, now.Header.Revision); err != nil {
		t.Fatal(err)
	}
	r.stop(t)
	r = run(t, folder)
	has("/a=5")
}

func TestListIsPaged(t *testing.T) {
	r := run(t, shortDir(t))
	for i := range 5 {
		if _, err := create(r.Client, fmt.Sprintf("/registry/pods/%d", i), "x"); err != nil {
			t.Fatal(err)
		}
	}
	list := func(from string, options ...clientv3.OpOption) *clientv3.GetResponse {
		page, err := r.Get(context.Background(), from, append(options, clientv3.WithRange("/registry/pods0"), clientv3.WithLimit(3))...)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	first := list("/registry/pods/")
	if len(first.Kvs) != 3 || !first.More || first.Count != 5 {
		t.Fatalf("first page: %d of %d, more %v", len(first.Kvs), first.Count, first.More)
	}
	if second := list(string(first.Kvs[2].Key)+"\x00", clientv3.WithRev(first.Header.Revision)); len(second.Kvs) != 2 || second.More {
		t.Errorf("second page: %d, more %v", len(second.Kvs), second.More)
	}
}

func TestWatch(t *testing.T) {
	r := run(t, shortDir(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	before, err := create(r.Client, "/registry/pods/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	watch := r.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithProgressNotify(),
		clientv3.WithRev(before.Header.Revision))
	changed, _ := update(r.Client, "/registry/pods/a", "2", before.Header.Revision)
	if _, err := remove(r.Client, "/registry/pods/a", changed.Header.Revision); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) < 3 {
		for _, event := range (<-watch).Events {
			got = append(got, fmt.Sprintf("%s %s %v", event.Type, event.Kv.Value, event.PrevKv != nil))
		}
	}
	if want := "PUT 1 false,PUT 2 true,DELETE  true"; strings.Join(got, ",") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// If the version is new enough, the API server asks for progress before it
	// answers a consistent list from its cache.
	other, err := create(r.Client, "/registry/nodes/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RequestProgress(ctx); err != nil {
		t.Fatal(err)
	}
	for response := range watch {
		if response.IsProgressNotify() && response.Header.Revision >= other.Header.Revision {
			break
		}
	}
	status, err := r.Status(ctx, r.Endpoints()[0])
	if err != nil || status.Version == "" || status.DbSize == 0 {
		t.Errorf("status %v %v", status, err)
	}
}

// Events have a lease: they expire by themselves.
func TestLeaseEnds(t *testing.T) {
	r := run(t, shortDir(t))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lease, err := r.Grant(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	const key = "/registry/events/a"
	made, err := r.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "x", clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !made.Succeeded {
		t.Fatalf("create the event: got %v, %v", made, err)
	}
	gone := (<-r.Watch(ctx, key, clientv3.WithRev(made.Header.Revision+1))).Events
	if len(gone) != 1 || gone[0].Type != clientv3.EventTypeDelete {
		t.Errorf("got %v", gone)
	}
}

func TestCompaction(t *testing.T) {
	r := run(t, shortDir(t))
	first, err := create(r.Client, "/registry/a", "0")
	if err != nil {
		t.Fatal(err)
	}
	revision := first.Header.Revision
	for range 200 {
		changed, err := update(r.Client, "/registry/a", "x", revision)
		if err != nil || !changed.Succeeded {
			t.Fatalf("update /registry/a: got %v, %v", changed, err)
		}
		revision = changed.Header.Revision
	}
	if _, err := r.Compact(context.Background(), revision-1); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get(context.Background(), "/registry/a", clientv3.WithRev(first.Header.Revision))
	if !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a compacted revision: %v", err)
	}
	if kept, err := r.Get(context.Background(), "/registry/a", clientv3.WithRev(revision-1)); err != nil || len(kept.Kvs) != 1 {
		t.Errorf("a recent revision: %v %v", kept, err)
	}
}

// The pragmas belong to a connection, so every one must have them.
func TestEveryConnectionIsDurable(t *testing.T) {
	r := run(t, shortDir(t))
	file := filepath.Join(config(r.folder).Dir, "state.db")
	db := sql.OpenDB(&connector{file: file})
	defer db.Close()
	var all sync.WaitGroup
	barrier := make(chan struct{})
	for range 20 {
		held, err := db.Conn(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		all.Go(func() {
			<-barrier
			var journal string
			var synchronous int
			if err := held.QueryRowContext(context.Background(), "PRAGMA journal_mode").Scan(&journal); err != nil {
				t.Error(err)
			}
			if err := held.QueryRowContext(context.Background(), "PRAGMA synchronous").Scan(&synchronous); err != nil {
				t.Error(err)
			}
			if journal != "wal" || synchronous != 2 {
				t.Errorf("journal_mode=%s synchronous=%d", journal, synchronous)
			}
		})
	}
	close(barrier)
	all.Wait()
}

// A connection that would not write safely is refused.
func TestUnsafeConnectionIsRefused(t *testing.T) {
	opened, err := (&sqlite3.SQLiteDriver{}).Open("file:memory?mode=memory&_synchronous=FULL&_journal_mode=WAL")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	err = configure(context.Background(), opened.(*sqlite3.SQLiteConn), "memory")
	if err == nil || !strings.Contains(err.Error(), "has set journal_mode to memory") {
		t.Errorf("got %v", err)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	r := run(t, shortDir(t))
	socket := config(r.folder).Socket
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v %v", info, err)
	}
	file := filepath.Join(config(r.folder).Dir, "state.db")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("database: %v %v", info, err)
	}
	if _, err := create(r.Client, "/registry/a", "1"); err != nil {
		t.Fatal(err)
	}
	// This client does not end by itself: the server ends its streams.
	stays := client(t, "unix://"+socket)
	watch := stays.Watch(context.Background(), "/registry/", clientv3.WithPrefix(), clientv3.WithProgressNotify())
	stays.RequestProgress(context.Background())
	if _, err := create(r.Client, "/registry/b", "1"); err != nil {
		t.Fatal(err)
	}
	<-watch
	r.stop(t)
	stays.Close()
	checkNothingLeft(t, r.folder)
	// The last checkpoint has copied everything into the database.
	if _, err := os.Stat(file + "-wal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the write-ahead log is left: %v", err)
	}
	again := run(t, r.folder)
	if kept, err := again.Get(context.Background(), "/registry/a"); err != nil || len(kept.Kvs) != 1 {
		t.Errorf("after a restart: got %v, %v, want one key", kept, err)
	}
}

func TestStopWhileStarting(t *testing.T) {
	folder := shortDir(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := New(config(folder)).Run(ctx, func() { t.Error("ready") }); err != nil {
		t.Errorf("got %v", err)
	}
	checkNothingLeft(t, folder)
}

func TestSocketOfAnother(t *testing.T) {
	r := run(t, shortDir(t))
	other := config(shortDir(t))
	other.Socket = config(r.folder).Socket
	err := New(other).Run(context.Background(), func() { t.Error("ready") })
	if err == nil || !strings.Contains(err.Error(), "stop the other kedge") {
		t.Errorf("got %v", err)
	}
	if _, err := create(r.Client, "/registry/a", "1"); err != nil {
		t.Errorf("the first one was harmed: %v", err)
	}
}
