package etcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// TestSnapshot saves on one of two servers, changes objects, and restores on the
// other server. Everything that either server acknowledged before the snapshot is
// back, and nothing newer. Clients that watched or read before must list again.
// The server is the only one of a new cluster, which the other server does not
// know.
func TestSnapshot(t *testing.T) {
	first := newHost(t, 51, nil)
	first.start(nil)
	second := newHost(t, 52, first)
	second.start(first)
	for i := range 100 {
		first.put(fmt.Sprint("before-", i))
	}
	first.put(join.TokenKey) // must not be restored
	file := filepath.Join(t.TempDir(), "saved")
	revision, err := second.member.Save(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	client := first.member.Endpoint().NewClient()
	defer client.Close()
	if _, err := client.Client.Delete(t.Context(), "before-7"); err != nil {
		t.Fatal(err)
	}
	answer, err := client.Client.Put(t.Context(), "after", "")
	if err != nil {
		t.Fatal(err)
	}
	last := answer.Header.Revision
	if revision >= last || revision < 100 {
		t.Errorf("saved at revision %d, want at least 100 and less than %d, which is later", revision, last)
	}
	if err := errors.Join(second.end(), first.end()); err != nil {
		t.Fatal(err)
	}

	m := New(first.config())
	handedOut, err := m.LastRevision(t.Context())
	if err != nil || handedOut < last {
		t.Fatalf("the last revision was %d, LastRevision says %d, %v", last, handedOut, err)
	}
	above := handedOut + 1e9
	restoring, kept := filepath.Join(string(first.dir), "restoring"), filepath.Join(string(first.dir), "kept")
	if err := errors.Join(os.Mkdir(restoring, 0o700), os.Mkdir(kept, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := m.Prepare(t.Context(), file, restoring, above); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time as after an interruption
		if err := m.Commit(t.Context(), restoring, kept); err != nil {
			t.Fatal(err)
		}
	}
	if !Exists(Prepared(kept)) {
		t.Error("the earlier data were not kept")
	}

	first.start(nil)
	first.voters("node-51")
	for i := range 100 {
		first.get(fmt.Sprint("before-", i))
	}
	restored := first.member.Endpoint().NewClient()
	defer restored.Close()
	all, err := restored.Client.Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil || all.Count != 100 || all.Header.Revision < above {
		t.Errorf("%d keys at revision %d, want 100 above %d, %v", all.Count, all.Header.Revision, above, err)
	}
	for _, from := range []int64{revision, last, above - 1} {
		watched := <-restored.Watch(t.Context(), "after", clientv3.WithRev(from))
		if !errors.Is(watched.Err(), rpctypes.ErrCompacted) {
			t.Errorf("a watch from %d: %v", from, watched.Err())
		}
	}
	if _, err := restored.Client.Get(t.Context(), "before-7", clientv3.WithRev(last)); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("a read at %d: %v", last, err)
	}
	first.put("later")

	// The other server joins as a new member.
	if err := os.Rename(second.dir.Etcd(), second.dir.Etcd()+".old"); err != nil {
		t.Fatal(err)
	}
	second.start(first)
	second.get("later")
	second.voters("node-51", "node-52")

	// The new cluster can be saved and queried like any other.
	again := filepath.Join(t.TempDir(), "again")
	if now, err := second.member.Save(t.Context(), again); err != nil || now <= above {
		t.Errorf("saved at revision %d, %v, want more than %d", now, err, above)
	}
	// Restore to a disk that has no data yet.
	empty := Config{Dir: filepath.Join(t.TempDir(), "server", "db", "etcd"), Node: "node-53", Address: "127.77.0.53"}
	folder := t.TempDir()
	if err := errors.Join(New(empty).Prepare(t.Context(), again, folder, 9e9), New(empty).Commit(t.Context(), folder, folder)); err != nil || !Exists(empty.Dir) {
		t.Errorf("restore into an empty folder: %v, or no data there", err)
	}
}

func TestPrepareRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	err := New(Config{Node: "node", Address: "127.77.0.60"}).Prepare(t.Context(), file, t.TempDir(), 1)
	if err == nil || !strings.Contains(err.Error(), "open etcd's database") {
		t.Errorf("no database: %v", err)
	}
}

func TestLastRevisionOfNothing(t *testing.T) {
	if last, err := New(Config{Dir: t.TempDir()}).LastRevision(t.Context()); last != 0 || err != nil {
		t.Errorf("got %d, %v", last, err)
	}
}
