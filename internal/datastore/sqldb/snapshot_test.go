package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// TestSnapshot saves through one of two servers, changes objects, and restores
// through another server, twice. Everything that was acknowledged before the
// snapshot is back, and nothing newer. Clients that watched or read before must
// list again.
func TestSnapshot(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r, other := run(t, i.endpoint("saved")), run(t, i.endpoint("saved"))
		kept := put(t, r.local, "kept", "1", 0)
		changed := put(t, r.local, "changed", "before", put(t, other.local, "changed", "first", 0))
		gone := put(t, r.local, "gone", "1", 0)
		large := strings.Repeat("large", 100_000)
		put(t, r.local, "large", large, 0)
		if _, err := r.local.Kubernetes.OptimisticDelete(t.Context(), prefix+"gone", gone, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{join.StoredKey, join.TokenKey} {
			if _, err := r.local.Client.Put(t.Context(), key, "secret"); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 2 * insertRows {
			put(t, r.local, fmt.Sprint("many-", n), "", 0)
		}
		file := filepath.Join(t.TempDir(), "saved")
		revision, err := other.Save(t.Context(), file)
		if err != nil || revision <= changed {
			t.Fatalf("saved at revision %d, %v, want more than %d", revision, err, changed)
		}
		put(t, r.local, "changed", "after", changed)
		last := put(t, other.local, "new", "1", 0)

		d := r.Datastore
		err = d.Prepare(t.Context(), file, "", 1)
		if err == nil || !strings.Contains(err.Error(), "is in use from") || !strings.Contains(err.Error(), "stop kedge on every server") {
			t.Errorf("restore while servers run: got error %v, want it refused", err)
		}
		r.stop()
		other.stop()

		above := last
		for _, name := range []string{"replaced-1", "replaced-2"} {
			handedOut, err := d.LastRevision(t.Context())
			if err != nil || handedOut < above {
				t.Fatalf("LastRevision: got %d, %v, want at least %d", handedOut, err, above)
			}
			above = handedOut + 1e9
			if err := d.Prepare(t.Context(), file, "", above-1); err != nil {
				t.Fatal(err)
			}
			// A restore was begun, and failed.
			if err := d.Prepare(t.Context(), file, "", above); err != nil {
				t.Fatal(err)
			}
			r = run(t, i.endpoint("saved"))
			if got, err := r.local.Client.Get(t.Context(), prefix+"changed"); err != nil || name == "replaced-1" && string(got.Kvs[0].Value) != "after" {
				t.Errorf("got %v, %v before the commit, want the value from before the restore", got, err)
			}
			if err := d.Commit(t.Context(), "", "/none/"+name); err == nil || !strings.Contains(err.Error(), "is in use from") {
				t.Errorf("commit while a server runs: got error %v, want it refused", err)
			}
			r.stop()
			for range 2 { // the second time as after an interruption
				if err := d.Commit(t.Context(), "", "/none/"+name); err != nil {
					t.Fatal(err)
				}
			}
			if where := d.Kept("/none/" + name); !strings.Contains(where, " kine_"+strings.ReplaceAll(name, "-", "_")+" of ") {
				t.Errorf("got place %q of the earlier data, want the name %s in it", where, name)
			}

			r = run(t, i.endpoint("saved"))
			for key, want := range map[string]string{"kept": "1", "changed": "before", "large": large, "gone": "", "new": ""} {
				got, err := r.local.Kubernetes.Get(t.Context(), prefix+key, kubernetes.GetOptions{})
				if err != nil || (got.KV == nil) != (want == "") || got.KV != nil && string(got.KV.Value) != want {
					t.Errorf("%s: got %v, %v, want %.20q", key, got, err, want)
				}
				if key == "kept" && (got.KV.ModRevision != kept || got.KV.CreateRevision != kept) || key == "changed" && got.KV.ModRevision != changed {
					t.Errorf("%s: got revisions %v, want those of the snapshot", key, got.KV)
				}
			}
			for _, key := range []string{join.StoredKey, join.TokenKey} {
				if stored, err := r.local.Client.Get(t.Context(), key); err != nil || len(stored.Kvs) > 0 {
					t.Errorf("%s: got %v, %v after the restore, want nothing", key, stored, err)
				}
			}
			many, err := r.local.Kubernetes.Count(t.Context(), prefix+"many-", kubernetes.CountOptions{})
			if err != nil || many != 2*insertRows {
				t.Errorf("got %d small objects, %v, want %d", many, err, 2*insertRows)
			}
			for _, from := range []int64{revision, last, above - 1} {
				watched := <-r.local.Watch(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
				if !errors.Is(watched.Err(), rpctypes.ErrCompacted) {
					t.Errorf("a watch from revision %d: got %v, want that it is compacted", from, watched.Err())
				}
			}
			if _, err := r.local.Client.Get(t.Context(), prefix+"kept", clientv3.WithRev(last)); !errors.Is(err, rpctypes.ErrCompacted) {
				t.Errorf("a read at revision %d: got %v, want that it is compacted", last, err)
			}
			// Writes continue, can be watched from what was listed, and can be
			// compacted.
			list, err := r.local.Kubernetes.List(t.Context(), prefix, kubernetes.ListOptions{})
			if err != nil || list.Revision < above {
				t.Fatalf("listed at %d, want above %d, %v", list.Revision, above, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			events := r.local.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(list.Revision+1))
			written := put(t, r.local, "kept", "2", kept)
			if answer := <-events; len(answer.Events) != 1 || answer.Events[0].Kv.ModRevision != written || written <= above {
				t.Errorf("got events %[2]v, want one at revision %[1]d, above the restored ones", written, answer)
			}
			cancel()
			if name == "replaced-2" {
				wantRestart(t, r, i.endpoint("saved"))
			}
			r.stop()
		}
		wantIndexes(t, d)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Prepare(t.Context(), file, "", above); err == nil || !strings.Contains(err.Error(), "contains no objects") {
			t.Errorf("prepare a file without objects: got error %v, want that it contains none", err)
		}
		if err := os.WriteFile(file, []byte("no objects"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Prepare(t.Context(), file, "", above); err == nil || !strings.Contains(err.Error(), "is not a dump of a database") {
			t.Errorf("prepare another kind of file: got error %v, want that it is not a dump", err)
		}
		if err := d.Commit(t.Context(), "", "/none/replaced-3"); err != nil {
			t.Errorf("commit with nothing prepared: %v", err)
		}
	})
}

// wantRestart compacts before and after a restart.
func wantRestart(t *testing.T, r *running, endpoint string) {
	t.Helper()
	compact := func() {
		t.Helper()
		for n := range retainRevisions {
			put(t, r.local, fmt.Sprintf("compacted-%d-%d", time.Now().UnixNano(), n), "", 0)
		}
		now, err := r.local.Client.Get(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.local.Compact(t.Context(), now.Header.Revision); err != nil {
			t.Errorf("compact: %v", err)
		}
	}
	compact()
	r.stop()
	*r = *run(t, endpoint)
	compact()
	r.stop()
}

// wantIndexes wants the table kine to be as kine's driver makes it.
func wantIndexes(t *testing.T, d *Datastore) {
	t.Helper()
	db := sql.OpenDB(d.target.connector)
	defer db.Close()
	statement := "SELECT COUNT(DISTINCT index_name) FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'kine'"
	want := 6
	if d.target.dialect == postgres {
		statement, want = "SELECT COUNT(*) FROM pg_indexes WHERE schemaname = current_schema() AND tablename = 'kine' AND indexname LIKE 'kine_%index' OR indexname = 'kine_pkey' AND schemaname = current_schema()", 7
	}
	var got int
	if err := db.QueryRow(statement).Scan(&got); err != nil || got != want {
		t.Errorf("it has %d indexes, want %d, %v", got, want, err)
	}
}

// A database that does not exist is created. One that cannot be used is named in
// the error.
func TestRestoreToNewDatabase(t *testing.T) {
	eachDatabase(t, func(t *testing.T, i *instance) {
		r := run(t, i.endpoint("one"))
		put(t, r.local, "kept", "1", 0)
		file := filepath.Join(t.TempDir(), "saved")
		if _, err := r.Save(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		r.stop()
		d, err := New(Config{Endpoint: i.endpoint("another"), Socket: filepath.Join(t.TempDir(), "socket")})
		if err != nil {
			t.Fatal(err)
		}
		last, err := d.LastRevision(t.Context())
		if last != 0 || err != nil {
			t.Fatalf("the last revision of nothing is %d, %v", last, err)
		}
		if err := errors.Join(d.Prepare(t.Context(), file, "", 5e9), d.Commit(t.Context(), "", "replaced-1")); err != nil {
			t.Fatal(err)
		}
		r = run(t, i.endpoint("another"))
		if got, err := r.local.Kubernetes.Get(t.Context(), prefix+"kept", kubernetes.GetOptions{}); err != nil || got.KV == nil {
			t.Errorf("got %v, %v", got, err)
		}
		r.stop()
		i.stop()
		if err := d.Prepare(t.Context(), file, "", 9e9); err == nil || !strings.Contains(err.Error(), "check that it runs") {
			t.Errorf("prepare while the database is down: got error %v, want one that says to check it", err)
		}
	})
}
