package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers"
	"github.com/k3s-io/kine/pkg/drivers/sqlite"
	"github.com/k3s-io/kine/pkg/server"
)

// ofKine runs kine's own backend over the database in folder while use runs.
func ofKine(t *testing.T, folder string, use func(server.Backend)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	file := filepath.Join(config(folder).Dir, "state.db")
	backend, _, err := sqlite.NewVariant(ctx, &running, "sqlite3", &drivers.Config{
		DataSourceName:   file + "?_journal_mode=WAL&_busy_timeout=30000&_txlock=immediate&_kine_disable_startup_vacuum",
		CompactBatchSize: 1000, CompactMinRetain: 1000, CompactTimeout: 5 * time.Second, PollBatchSize: 500, PollInterval: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Start(ctx); err != nil {
		t.Fatal(err)
	}
	use(backend)
	cancel()
	running.Wait()
}

// content lists all keys of clients, with their values and revisions.
func content(t *testing.T, b server.Backend) string {
	t.Helper()
	_, kvs, err := b.List(context.Background(), "/", "0", 0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, kv := range kvs {
		fmt.Fprintf(&all, "%s=%s %d %d %d\n", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease)
	}
	return all.String()
}

// kedge takes over a database of kine, for example of k3s or of an older kedge.
// kine can use it again after that, with all objects and revisions.
func TestKineBeforeAndAfter(t *testing.T) {
	folder := shortDir(t)
	used(t, folder) // makes the folder
	write := func(b server.Backend, name string) {
		ctx := context.Background()
		for i := range 20 {
			key := fmt.Sprintf("/registry/%s/%d", name, i)
			revision, err := b.Create(ctx, key, []byte("1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if i%3 > 0 {
				if revision, _, _, err = b.Update(ctx, key, []byte("2"), revision, 0); err != nil {
					t.Fatal(err)
				}
			}
			if i%3 > 1 {
				if _, _, _, err = b.Delete(ctx, key, revision); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := b.Create(ctx, eventPrefix+name, []byte("1"), 3600); err != nil {
			t.Fatal(err)
		}
		lease := leasePrefix + "kube-node-lease/" + name
		revision, err := b.Create(ctx, lease, leaseValue("a", 1), 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := b.Update(ctx, lease, leaseValue("a", 2), revision, 0); err != nil {
			t.Fatal(err)
		}
	}
	var want string
	for round := range 2 {
		ofKine(t, folder, func(b server.Backend) {
			if got := content(t, b); round > 0 && got != want {
				t.Errorf("kine finds\n%s, want\n%s", got, want)
			}
			write(b, fmt.Sprintf("kine%d", round))
			want = content(t, b)
		})
		r := run(t, folder)
		if got := content(t, r.backend); got != want {
			t.Errorf("kedge finds\n%s, want\n%s", got, want)
		}
		write(r.backend, fmt.Sprintf("kedge%d", round))
		want = content(t, r.backend)
		r.stop(t)
	}
	// Nothing must show kine a gap, which it would fill row by row.
	db, err := sql.Open("sqlite3", filepath.Join(config(folder).Dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var last, sequence int64
	if err := db.QueryRow(`SELECT MAX(id), (SELECT seq FROM sqlite_sequence) FROM kine`).Scan(&last, &sequence); err != nil || last != sequence {
		t.Errorf("last row %d, sequence %d: %v", last, sequence, err)
	}
}
