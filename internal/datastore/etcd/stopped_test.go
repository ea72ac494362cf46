package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// read returns what a Stopped exports, by key, and its revision.
func (s Stopped) all(t *testing.T) (map[string]*mvccpb.KeyValue, int64) {
	t.Helper()
	kvs, last := map[string]*mvccpb.KeyValue{}, int64(0)
	revision, _, err := s.Export(t.Context(), func(e *mvccpb.Event) error {
		kv := e.Kv
		if kv.ModRevision <= last {
			t.Errorf("%s of revision %d comes after revision %d", kv.Key, kv.ModRevision, last)
		}
		last = kv.ModRevision
		kvs[string(kv.Key)] = kv
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return kvs, revision
}

// A member's files have all that it acknowledged, also if it was killed and its database
// lacks what only the log has.
func TestStopped(t *testing.T) {
	h := newHost(t, 41, nil)
	h.start(nil)
	client := h.member.Endpoint().NewClient().Client
	put := func(key, value string, options ...clientv3.OpOption) {
		t.Helper()
		if _, err := client.Put(t.Context(), key, value, options...); err != nil {
			t.Fatal(err)
		}
	}
	put("/changed", "1")
	put("/deleted", "1")
	put("/kept", "1")
	if err := h.end(); err != nil {
		t.Fatal(err)
	}
	early, err := os.ReadFile(database(h.dir.Etcd()))
	if err != nil {
		t.Fatal(err)
	}

	h.start(nil)
	client = h.member.Endpoint().NewClient().Client
	put("/changed", "2")
	granted, err := client.Grant(t.Context(), 4000)
	if err != nil {
		t.Fatal(err)
	}
	put("/leased", "1", clientv3.WithLease(granted.ID))
	revoked, err := client.Grant(t.Context(), 5000)
	if err != nil {
		t.Fatal(err)
	}
	put("/revoked", "1", clientv3.WithLease(revoked.ID))
	if _, err := client.Revoke(t.Context(), revoked.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Delete(t.Context(), "/deleted"); err != nil {
		t.Fatal(err)
	}
	for i := range readPage + 1 { // more than one page
		if _, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(fmt.Sprint("/many/", i)), "=", 0)).
			Then(clientv3.OpPut(fmt.Sprint("/many/", i), "1")).Else(clientv3.OpPut("/never", "1")).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	want, wantRevision := all(t, client)
	if len(want) != readPage+4 {
		t.Fatalf("there are %d keys", len(want))
	}
	want["/leased"].Lease = 4000
	s := Stopped{Dir: h.dir.Etcd(), Scratch: filepath.Join(t.TempDir(), "scratch")}
	if _, _, err := s.Export(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("while the member runs: %v", err)
	}
	if err := h.end(); err != nil {
		t.Fatal(err)
	}

	for name, database := range map[string]func(string) error{
		"stopped": func(string) error { return nil },
		"killed":  func(file string) error { return os.WriteFile(file, early, 0o600) },
	} {
		copied := filepath.Join(t.TempDir(), "etcd")
		if output, err := exec.Command("cp", "-r", h.dir.Etcd(), copied).CombinedOutput(); err != nil {
			t.Fatalf("copy: %v: %s", err, output)
		}
		if err := database(filepath.Join(copied, "member", "snap", "db")); err != nil {
			t.Fatal(err)
		}
		got, revision := Stopped{Dir: copied, Scratch: s.Scratch}.all(t)
		if revision != wantRevision {
			t.Errorf("%s: the revision is %d, want %d", name, revision, wantRevision)
		}
		wantSame(t, got, want)
		if _, err := os.Stat(s.Scratch); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the copy is still there: %v", name, err)
		}
	}

	// What is exported can be the state of a single server.
	sqliteDir := filepath.Join(t.TempDir(), "db")
	if err := sqlite.New(sqlite.Config{Dir: sqliteDir}).Import(context.Background(), s.Export); err != nil {
		t.Fatal(err)
	}
	single := startSQLite(t, sqliteDir)
	got, revision := all(t, single.client)
	for _, kv := range got {
		kv.Version = map[bool]int64{true: 1, false: 2}[kv.CreateRevision == kv.ModRevision]
	}
	delete(got, "/registry/health")
	wantSame(t, got, want)
	if revision <= wantRevision {
		t.Errorf("the revision is %d, want more than %d", revision, wantRevision)
	}
	if _, err := single.client.Get(t.Context(), "/kept", clientv3.WithRev(wantRevision-1)); err == nil {
		t.Error("an old revision can be read")
	}
}

// A database that is not one, and one that is older than its log, are refused.
func TestStoppedRefuses(t *testing.T) {
	folder := t.TempDir()
	s := Stopped{Dir: folder, Scratch: filepath.Join(folder, "scratch")}
	if _, _, err := s.Export(t.Context(), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a database: %v", err)
	}
	if err := os.MkdirAll(filepath.Dir(database(folder)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(database(folder), []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Export(t.Context(), nil); err == nil {
		t.Error("a text is taken for a database")
	}
}
