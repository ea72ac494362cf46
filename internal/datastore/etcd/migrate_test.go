package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// oneServer is a running datastore of a single server.
type oneServer struct {
	*testing.T
	folder string
	client *clientv3.Client
	stop   func()
}

func startSQLite(t *testing.T, folder string) *oneServer {
	t.Helper()
	sockets, err := os.MkdirTemp("", "kine") // its path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	d := sqlite.New(sqlite.Config{Dir: folder, Socket: filepath.Join(sockets, "kine.sock")})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	s := &oneServer{T: t, folder: folder, client: d.Endpoint().NewClient().Client}
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// set writes a key in the way of the API server, if the key has the given
// revision. It returns the new revision. A lease is in seconds.
func (s *oneServer) set(key, value string, was, lease int64) int64 {
	var options []clientv3.OpOption
	if lease != 0 {
		options = append(options, clientv3.WithLease(clientv3.LeaseID(lease)))
	}
	answer, err := s.client.Txn(context.Background()).If(clientv3.Compare(clientv3.ModRevision(key), "=", was)).
		Then(clientv3.OpPut(key, value, options...)).Else(clientv3.OpGet(key)).Commit()
	if err != nil || !answer.Succeeded {
		s.Errorf("write %s: %v, %v", key, answer, err)
		return 0
	}
	return answer.Header.Revision
}

func (s *oneServer) remove(key string, was int64) {
	answer, err := s.client.Txn(context.Background()).If(clientv3.Compare(clientv3.ModRevision(key), "=", was)).
		Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
	if err != nil || !answer.Succeeded {
		s.Errorf("delete %s: %v, %v", key, answer, err)
	}
}

// fill makes, changes and deletes that many objects. A tenth of them is deleted,
// and some are events, which have leases.
func (s *oneServer) fill(objects int) {
	s.Helper()
	var workers sync.WaitGroup
	const parallel = 50 // parallel writes share syncs of the disk
	for worker := range parallel {
		workers.Go(func() {
			for i := worker; i < objects; i += parallel {
				key, lease := fmt.Sprintf("/registry/configmaps/default/object-%d", i), int64(0)
				if i%20 == 3 {
					key, lease = fmt.Sprintf("/registry/events/default/event-%d", i), int64(3600+i%3)
				}
				size := rand.IntN(3000)
				if i%1000 == 7 {
					size = 1 << 20
				}
				revision := s.set(key, strings.Repeat("x", size), 0, lease)
				for change := range i % 4 {
					revision = s.set(key, fmt.Sprint("changed ", change), revision, lease)
				}
				switch i % 10 {
				case 5:
					s.remove(key, revision)
				case 6:
					s.remove(key, revision)
					s.set(key, "again", 0, lease)
				}
			}
		})
	}
	workers.Wait()
}

// all returns all objects of a store, and its revision.
func all(t *testing.T, client clientv3.KV) (map[string]*mvccpb.KeyValue, int64) {
	t.Helper()
	answer, err := client.Get(t.Context(), "/", clientv3.WithRange("0"))
	if err != nil {
		t.Fatal(err)
	}
	kvs := map[string]*mvccpb.KeyValue{}
	for _, kv := range answer.Kvs {
		kvs[string(kv.Key)] = kv
	}
	return kvs, answer.Header.Revision
}

// wantSame compares what etcd has with what SQLite had.
func wantSame(t *testing.T, got, want map[string]*mvccpb.KeyValue) {
	t.Helper()
	for key, kv := range got {
		was := want[key]
		if was == nil {
			t.Errorf("%s has come up", key)
			continue
		}
		if string(kv.Value) != string(was.Value) || kv.CreateRevision != was.CreateRevision || kv.ModRevision != was.ModRevision || kv.Lease != was.Lease {
			t.Errorf("%s is %.200v, and was %.200v", key, kv, was)
		}
		if (kv.Version == 1) != (kv.CreateRevision == kv.ModRevision) || kv.Version < 1 {
			t.Errorf("%s of revisions %d to %d has version %d", key, kv.CreateRevision, kv.ModRevision, kv.Version)
		}
	}
	for key := range want {
		if got[key] == nil {
			t.Errorf("%s is lost", key)
		}
	}
}

// watched returns the events that a watch sees between two revisions.
func watched(t *testing.T, client clientv3.Watcher, from, to int64) (seen []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for answer := range client.Watch(ctx, "/", clientv3.WithRange("0"), clientv3.WithRev(from), clientv3.WithPrevKV()) {
		if err := answer.Err(); err != nil {
			t.Fatal(err)
		}
		for _, event := range answer.Events {
			if event.Kv.ModRevision > to {
				return seen
			}
			line := fmt.Sprintf("%s %s %d %.50s", event.Type, event.Kv.Key, event.Kv.ModRevision, event.Kv.Value)
			if event.PrevKv != nil {
				line += fmt.Sprintf(" after %d %.50s", event.PrevKv.ModRevision, event.PrevKv.Value)
			}
			seen = append(seen, line)
			if event.Kv.ModRevision == to {
				return seen
			}
		}
	}
	t.Fatal("the watch ended")
	return nil
}

// migrated starts the member that has SQLite's state now.
func migrated(t *testing.T, number int, folder string) *host {
	t.Helper()
	h := newHost(t, number, nil)
	if err := os.MkdirAll(filepath.Dir(h.dir.Etcd()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(t.Context(), h.config(), sqlite.New(sqlite.Config{Dir: folder}).Export); err != nil {
		t.Fatal(err)
	}
	h.start(nil)
	return h
}

// TestMigrate wants etcd to continue where SQLite was: every key at its revision,
// with its history, and new revisions above all that were seen.
func TestMigrate(t *testing.T) {
	folder := t.TempDir()
	s := startSQLite(t, folder)
	s.set("/registry/compacted", "once", 0, 0)
	s.fill(10_000)
	// A renewal is written when SQLite stops, with the revision that it had.
	address := s.set("/registry/masterleases/192.0.2.1", "192.0.2.1", 0, 50)
	for range 3 {
		address = s.set("/registry/masterleases/192.0.2.1", "192.0.2.1", address, 50)
	}
	_, middle := all(t, s.client)
	s.late(middle)
	want, revision := all(t, s.client)
	events := watched(t, s.client, middle+1, revision)
	s.stop()

	h := migrated(t, 41, folder)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	got, now := all(t, client.Client)
	wantSame(t, got, want)
	if now < revision || now > revision+1 {
		t.Errorf("got revision %d after the migration, want %d or one more", now, revision)
	}
	if seen := watched(t, client, middle+1, revision); strings.Join(seen, "\n") != strings.Join(events, "\n") {
		t.Errorf("a watch that began before the migration: got\n%.2000s\nwant\n%.2000s", strings.Join(seen, "\n"), strings.Join(events, "\n"))
	}
	written, err := client.Put(t.Context(), "/registry/new", "new")
	if err != nil || written.Header.Revision <= revision {
		t.Errorf("the next write: %v, %v", written, err)
	}
	leases, err := client.Leases(t.Context())
	if err != nil || len(leases.Leases) != 4 {
		t.Errorf("the leases are %v, %v", leases, err)
	}
	life, err := client.TimeToLive(t.Context(), 3600, clientv3.WithAttachedKeys())
	if err != nil || life.GrantedTTL != 3600 || life.TTL < 3000 || len(life.Keys) == 0 {
		t.Errorf("the lease of events is %v, %v", life, err)
	}

	// The member works like any other.
	second := newHost(t, 42, h)
	second.start(h)
	second.voters("node-41", "node-42")
	if err := h.end(); err != nil {
		t.Error(err)
	}
	h.start(nil)
	there := second.member.Endpoint().NewClient()
	defer there.Close()
	got, _ = all(t, there.Client)
	delete(got, "/registry/new")
	delete(got, "/registry/masterleases/192.0.2.1") // its lease may have ended
	delete(want, "/registry/masterleases/192.0.2.1")
	wantSame(t, got, want)
}

// late makes changes of all kinds after a revision.
func (s *oneServer) late(after int64) {
	s.Helper()
	for i := range 20 {
		key := fmt.Sprintf("/registry/late-%d", i)
		first := s.set(key, "first", 0, 0)
		if first <= after {
			s.Fatalf("revision %d comes after %d", first, after)
		}
		s.remove(key, s.set(key, "second", first, 0))
	}
	s.set("/registry/late", "last", 0, 0)
}

// TestMigrateAfterCrash migrates what a kill has left. Revisions that were seen and
// lost are not used again, and clients that saw them must list again.
func TestMigrateAfterCrash(t *testing.T) {
	folder, copied := t.TempDir(), t.TempDir()
	s := startSQLite(t, folder)
	s.fill(200)
	last := s.set("/registry/durable", "kept", 0, 0)
	// An event stays in memory for seconds.
	seen := s.set("/registry/events/default/lost", "lost", 0, 3600)
	if err := os.CopyFS(copied, os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	h := migrated(t, 43, copied)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	got, now := all(t, client.Client)
	if kv := got["/registry/durable"]; kv == nil || kv.ModRevision != last || string(kv.Value) != "kept" {
		t.Errorf("got %v, want the acknowledged value at revision %d", kv, last)
	}
	if now <= seen {
		t.Errorf("the revision is %d, and %d was seen", now, seen)
	}
	answer := <-client.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(last+1))
	if answer.Err() != rpctypes.ErrCompacted {
		t.Errorf("a watch from before got %+v", answer)
	}
}
