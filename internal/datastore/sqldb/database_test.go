package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/datastore"
)

const prefix = "/registry/things/"

// put writes in the way of the API server, and returns the revision.
func put(t *testing.T, c *kubernetes.Client, key, value string, revision int64) int64 {
	t.Helper()
	response, err := c.Kubernetes.OptimisticPut(t.Context(), prefix+key, []byte(value), revision, kubernetes.PutOptions{GetOnFailure: revision > 0})
	if err != nil || !response.Succeeded {
		t.Fatalf("put %s: %v %v", key, response, err)
	}
	return response.Revision
}

// Requests have the same meaning as with etcd, in process and over the socket.
func TestRequests(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("things"))
		remote := &kubernetes.Client{Client: r.remote}
		remote.Kubernetes = remote
		for _, c := range []*kubernetes.Client{r.local, remote} {
			k, ctx, onFailure := c.Kubernetes, t.Context(), kubernetes.PutOptions{GetOnFailure: true}
			first := put(t, c, "a", "1", 0)
			if again, err := k.OptimisticPut(ctx, prefix+"a", nil, 0, onFailure); err != nil || again.Succeeded || string(again.KV.Value) != "1" {
				t.Errorf("create a key that exists: got %v, %v, want it refused with the value 1", again, err)
			}
			second := put(t, c, "a", "2", first)
			if late, err := k.OptimisticPut(ctx, prefix+"a", nil, first, onFailure); err != nil || late.Succeeded || late.KV.ModRevision != second {
				t.Errorf("update from an old revision: got %v, %v, want it refused with revision %d", late, err, second)
			}
			got, err := k.Get(ctx, prefix+"a", kubernetes.GetOptions{})
			if err != nil || string(got.KV.Value) != "2" || got.KV.CreateRevision != first || got.KV.ModRevision != second || got.Revision < second {
				t.Errorf("get: got %v, %v, want the value 2 at revision %d", got, err, second)
			}
			if old, err := k.Get(ctx, prefix+"a", kubernetes.GetOptions{Revision: first}); err != nil || string(old.KV.Value) != "1" {
				t.Errorf("get at revision %d: got %v, %v, want the value 1", first, old, err)
			}
			if _, err := k.Get(ctx, prefix+"a", kubernetes.GetOptions{Revision: second + 1000}); err != rpctypes.ErrFutureRev {
				t.Errorf("get at a future revision: got error %v, want %v", err, rpctypes.ErrFutureRev)
			}
			last := second
			for _, key := range []string{"b", "c", "d"} {
				last = put(t, c, key, key, 0)
			}
			page, err := k.List(ctx, prefix, kubernetes.ListOptions{Limit: 3})
			if err != nil || len(page.Kvs) != 3 || page.Count != 4 || page.Revision < last {
				t.Fatalf("first page: got %v, %v, want 3 of 4 keys", page, err)
			}
			rest, err := k.List(ctx, prefix, kubernetes.ListOptions{Limit: 3, Revision: page.Revision, Continue: prefix + "c\x00"})
			if err != nil || len(rest.Kvs) != 1 || string(rest.Kvs[0].Key) != prefix+"d" {
				t.Errorf("second page: got %v, %v, want the key d", rest, err)
			}
			if n, err := k.Count(ctx, prefix, kubernetes.CountOptions{}); err != nil || n != 4 {
				t.Errorf("count: got %v, %v, want 4", n, err)
			}
			if gone, err := k.OptimisticDelete(ctx, prefix+"a", first, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || gone.Succeeded || gone.KV.ModRevision != second {
				t.Errorf("delete from an old revision: got %v, %v, want it refused with revision %d", gone, err, second)
			}
			for _, key := range []string{"a", "b", "c", "d"} {
				got, err := k.Get(ctx, prefix+key, kubernetes.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if gone, err := k.OptimisticDelete(ctx, prefix+key, got.KV.ModRevision, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || !gone.Succeeded {
					t.Errorf("delete %s: got %v, %v, want it to succeed", key, gone, err)
				}
			}
			if left, err := k.List(ctx, prefix, kubernetes.ListOptions{}); err != nil || len(left.Kvs) != 0 || left.Revision <= last {
				t.Errorf("list after the deletions: got %v, %v, want no keys at a new revision", left, err)
			}
		}
		for _, c := range []*kubernetes.Client{r.local, remote} {
			for _, step := range [][3]string{{"b", "1", ""}, {"a", "1", ""}, {"b", "2", "1"}} {
				done, err := c.Put(t.Context(), prefix+step[0], step[1], clientv3.WithPrevKV())
				if err != nil {
					t.Fatal(err)
				}
				if was := done.PrevKv; was == nil && step[2] != "" || was != nil && string(was.Value) != step[2] {
					t.Errorf("put %s=%s: got previous value %v, want %q", step[0], step[1], was, step[2])
				}
			}
			if gone, err := c.Delete(t.Context(), prefix+"b", clientv3.WithPrevKV()); err != nil || gone.Deleted != 1 || string(gone.PrevKvs[0].Value) != "2" {
				t.Errorf("delete b: got %v, %v, want one deletion with the value 2", gone, err)
			}
			if gone, err := c.Delete(t.Context(), "", clientv3.WithFromKey()); err != nil || gone.Deleted == 0 {
				t.Errorf("delete all keys: got %v, %v, want deletions", gone, err)
			}
			if left, err := c.KV.Get(t.Context(), prefix, clientv3.WithPrefix()); err != nil || len(left.Kvs) != 0 {
				t.Errorf("got keys %v, %v after the deletion of all, want none", left, err)
			}
			if row, err := r.backend.Load().latest(t.Context(), compactKey, 0, false); err != nil || row == nil || row.Delete {
				t.Errorf("got row %v, %v for the compacted revision, want one", row, err)
			}
		}
		if status, err := r.remote.Status(t.Context(), r.Endpoint().URL); err != nil || status.DbSize == 0 {
			t.Errorf("status: got %v, %v, want the size of the database", status, err)
		}
		lease, err := r.local.Grant(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.local.Kubernetes.OptimisticPut(t.Context(), prefix+"event", nil, 0, kubernetes.PutOptions{LeaseID: lease.ID}); err != nil {
			t.Fatal(err)
		}
		ctx := soon(t)
		for there := true; there; {
			got, err := r.local.Kubernetes.Get(ctx, prefix+"event", kubernetes.GetOptions{})
			if err != nil {
				t.Fatalf("waiting for the end of the event: %v", err)
			}
			there = got.KV != nil
		}
	})
}

// soon returns a context that ends when what is waited for should have come.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// Several servers write at the same time. A client that lists and then watches,
// at any of them, sees every change once and in order.
func TestServersShare(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		servers := []*running{run(t, i.endpoint("shared")), run(t, i.endpoint("shared"))}
		const writers, each = 4, 50
		var writing sync.WaitGroup
		var faults sync.Map
		for n := range writers {
			c := servers[n%len(servers)].local
			writing.Go(func() {
				for m := range each {
					key := fmt.Sprintf("%s%d-%d", prefix, n, m)
					response, err := c.Kubernetes.OptimisticPut(context.Background(), key, []byte("1"), 0, kubernetes.PutOptions{})
					if err != nil || !response.Succeeded {
						faults.Store(key, fmt.Sprint(response, err))
					}
					// All writers compete for one key: some of them fail, which
					// leaves gaps.
					got, err := c.Kubernetes.Get(context.Background(), prefix+"all", kubernetes.GetOptions{})
					if err != nil {
						faults.Store(key, err.Error())
						continue
					}
					var last int64
					if got.KV != nil {
						last = got.KV.ModRevision
					}
					if _, err := c.Kubernetes.OptimisticPut(context.Background(), prefix+"all", []byte(key), last, kubernetes.PutOptions{GetOnFailure: true}); err != nil {
						faults.Store(key, err.Error())
					}
				}
			})
		}
		check := func(r *running) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			client := r.Endpoint().NewClient()
			defer client.Close()
			list, err := client.Kubernetes.List(ctx, prefix, kubernetes.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			seen, last := map[string]bool{}, list.Revision
			for _, kv := range list.Kvs {
				seen[string(kv.Key)] = true
			}
			delete(seen, prefix+"all")
			for response := range client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(list.Revision+1), clientv3.WithPrevKV()) {
				for _, e := range response.Events {
					key := string(e.Kv.Key)
					if e.Kv.ModRevision <= last {
						t.Errorf("event %d after %d", e.Kv.ModRevision, last)
					}
					last = e.Kv.ModRevision
					if key == prefix+"all" {
						continue
					}
					if seen[key] || e.Type != mvccpb.Event_PUT {
						t.Errorf("got a second event, or a deletion, for %s", key)
					}
					seen[key] = true
				}
				if len(seen) == writers*each {
					return
				}
			}
			t.Errorf("got events for %d keys, want %d", len(seen), writers*each)
		}
		var checking sync.WaitGroup
		for range 10 {
			for _, r := range servers {
				checking.Go(func() { check(r) })
			}
		}
		writing.Wait()
		checking.Wait()
		faults.Range(func(key, fault any) bool {
			t.Errorf("writer %v: %v", key, fault)
			return true
		})
	})
}

// What was compacted can neither be read nor watched. Everything else can.
func TestCompaction(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("compact"))
		kept := put(t, r.local, "kept", "1", 0)
		changed := put(t, r.local, "changed", "0", 0)
		first := changed
		for n := range retainRevisions + 50 {
			changed = put(t, r.local, "changed", fmt.Sprint(n), changed)
		}
		if _, err := r.local.Compact(t.Context(), changed+1000); err != rpctypes.ErrFutureRev {
			t.Errorf("compact a future revision: got error %v, want %v", err, rpctypes.ErrFutureRev)
		}
		if _, err := r.local.Compact(t.Context(), changed); err != nil {
			t.Fatal(err)
		}
		if _, err := r.local.Kubernetes.Get(t.Context(), prefix+"changed", kubernetes.GetOptions{Revision: first}); err != rpctypes.ErrCompacted {
			t.Errorf("read a compacted revision: got error %v, want %v", err, rpctypes.ErrCompacted)
		}
		for response := range r.local.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(first)) {
			if response.CompactRevision == 0 {
				t.Errorf("watch from a compacted revision: got %v, want the compacted revision", response)
			}
		}
		got, err := r.local.Kubernetes.Get(t.Context(), prefix+"kept", kubernetes.GetOptions{})
		if err != nil || got.KV.ModRevision != kept {
			t.Errorf("a key that never changed: got %v, %v, want revision %d", got, err, kept)
		}
		db := sql.OpenDB(r.target.connector)
		defer db.Close()
		var rows int64
		if err := db.QueryRow("SELECT COUNT(*) FROM kine").Scan(&rows); err != nil || rows > retainRevisions+10 {
			t.Errorf("got %d rows, %v after the compaction, want at most %d", rows, err, retainRevisions+10)
		}

		// This server did not see the database while others compacted it.
		b := newBackend(db, r.target.dialect, newFaults(r.target))
		b.hub.start(first)
		watch := b.WatchRange(t.Context(), prefix, "", first+1)
		var missing int64
		for range 2 {
			if _, err := b.pollOnce(t.Context(), &missing); err != nil {
				t.Fatal(err)
			}
		}
		if events, ok := <-watch.Eventc; ok {
			t.Errorf("a watch that missed compacted changes: got events %v, want it to end", events)
		}
		if again := b.WatchRange(t.Context(), prefix, "", first+1); again.CompactRevision <= first || b.hub.seen() != again.CompactRevision {
			t.Errorf("a new watch from there: got %+v, want the compacted revision", again)
		}
	})
}

// The database goes away: requests fail and say so. When it is back, everything
// continues, and what was acknowledged is there.
func TestDatabaseGoesAway(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("away"))
		before := put(t, r.local, "a", "1", 0)
		stats, health := r.Stats(t.Context()), r.Health(t.Context())
		if stats.Size == 0 || stats.Recent.Count == 0 || !strings.Contains(stats.Place, "database away, user root") || stats.Disk != nil {
			t.Errorf("got stats %+v, want a size, commits and the place, without a disk", stats)
		}
		if health.Fault != "" || health.Connections.Open == 0 || health.Connections.Max != connections || health.Connections.Answer == 0 {
			t.Errorf("got health %+v, want no fault and open connections", health)
		}
		watch := r.local.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(before+1))
		i.stop()
		_, err := r.local.Kubernetes.OptimisticPut(t.Context(), prefix+"b", nil, 0, kubernetes.PutOptions{})
		if err == nil || !strings.Contains(err.Error(), "cannot be reached: check that it runs") {
			t.Errorf("write without a database: got error %v, want that it cannot be reached", err)
		}
		if _, err := r.local.Kubernetes.List(t.Context(), prefix, kubernetes.ListOptions{}); err == nil {
			t.Error("list without a database: got no error")
		}
		if _, err := r.local.Compact(t.Context(), before); err == nil {
			t.Error("compact without a database: got no error")
		}
		if fault := r.Health(t.Context()).Fault; !strings.Contains(fault, "cannot be reached: check that it runs") {
			t.Errorf("without a database: got fault %q, want that it cannot be reached", fault)
		}
		i.start()
		ctx := soon(t)
		for written := false; !written; {
			response, err := r.local.Kubernetes.OptimisticPut(ctx, prefix+"c", nil, 0, kubernetes.PutOptions{})
			if ctx.Err() != nil {
				t.Fatalf("write after the database is back: %v", err)
			}
			written = err == nil && response.Succeeded
		}
		if fault := r.Health(t.Context()).Fault; fault != "" {
			t.Errorf("got fault %q, want none after the database is back", fault)
		}
		for heard := false; !heard; {
			select {
			case response, open := <-watch:
				if !open {
					t.Fatal("the watch has ended")
				}
				if heard = len(response.Events) > 0; heard && string(response.Events[0].Kv.Key) != prefix+"c" {
					t.Errorf("event of %s", response.Events[0].Kv.Key)
				}
			case <-ctx.Done():
				t.Fatal("the watch has no event of what was written after the database is back")
			}
		}
		if list, err := r.local.Kubernetes.List(t.Context(), prefix, kubernetes.ListOptions{}); err != nil || len(list.Kvs) != 2 {
			t.Errorf("got list %v, %v, want two keys", list, err)
		}
	})
}

// The datastore waits for a database that does not exist yet.
func TestWaitsForDatabase(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		i.stop()
		go func() {
			time.Sleep(3 * time.Second)
			i.start()
		}()
		put(t, run(t, i.endpoint("later")).local, "a", "1", 0)
	})
}

// Faults that the user can repair are reported at once.
func TestRefusals(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		db := sql.OpenDB(run(t, i.endpoint("first")).target.connector)
		defer db.Close()
		for _, statement := range []string{"CREATE ROLE stranger LOGIN", "CREATE USER stranger"} {
			if _, err := db.Exec(statement); err == nil {
				break
			}
		}
		endpoint := strings.Replace(i.endpoint("stranger"), "root@", "stranger:secret@", 1)
		if strings.HasPrefix(endpoint, "mysql") {
			endpoint = strings.Replace(endpoint, ":secret", "", 1)
		}
		if err := fails(t, endpoint, datastore.TLS{}); err == nil || !strings.Contains(err.Error(), "create it with stranger as its owner") {
			t.Errorf("no right to make a database: %v", err)
		}
		endpoint = strings.Replace(i.endpoint("first"), "root@", "nemo:secret@", 1)
		if err := fails(t, endpoint, datastore.TLS{}); err == nil || !strings.Contains(err.Error(), "check user and password") || strings.Contains(err.Error(), "secret") {
			t.Errorf("unknown user: %v", err)
		}
	})
}

// brokenRows are rows of which the second one never arrives.
type brokenRows struct{ rows int }

func (*brokenRows) Columns() []string { return strings.Split(columns, ", ") }
func (*brokenRows) Close() error      { return nil }
func (b *brokenRows) Next(row []driver.Value) error {
	if b.rows++; b.rows > 1 {
		return errors.New("broken off")
	}
	copy(row, []driver.Value{int64(1), "a", int64(1), int64(0), int64(0), int64(0), int64(0)})
	return nil
}

// brokenConn is a connection, and its driver.Connector.
type brokenConn struct{ driver.Conn }

func (b brokenConn) Connect(context.Context) (driver.Conn, error) { return b, nil }
func (brokenConn) Driver() driver.Driver                          { return nil }
func (brokenConn) Close() error                                   { return nil }
func (brokenConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &brokenRows{}, nil
}

// A list that broke off must be an error: a client that took it for complete
// would delete the rest.
func TestBrokenList(t *testing.T) {
	db := sql.OpenDB(brokenConn{})
	defer db.Close()
	b := newBackend(db, postgres, newFaults(&target{dialect: postgres}))
	if events, err := b.events(t.Context(), "SELECT "+columns, nil, false, false); err == nil {
		t.Errorf("got events %v, want an error because the connection broke", events)
	}
}
