package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// large returns the largest contents that an object of this key can have. Its
// revisions have up to 6 digits.
func large(key string) string {
	rest := proto.Size(sizes.Change([]byte(key), make([]byte, sizes.Limit), 999_999, 0)) - sizes.Limit
	return strings.Repeat("x", sizes.Limit-rest)
}

// TestLargest wants the largest object that SQLite accepts to be changed and deleted
// after the move to etcd, as before it. Both refuse a larger one in the same words.
func TestLargest(t *testing.T) {
	folder := t.TempDir()
	s := startSQLite(t, folder)
	revisions := map[string]int64{}
	const changed, deleted = "/registry/configmaps/default/changed", "/registry/configmaps/default/deleted"
	for _, key := range []string{changed, deleted} {
		revisions[key] = s.set(key, large(key), 0, 0)
	}
	refused := tooLarge(t, s.client, changed, revisions[changed])
	s.stop()

	h := migrated(t, 44, folder)
	client := h.member.Endpoint().NewClient()
	defer client.Close()
	moved := &oneServer{T: t, client: client.Client}
	moved.set(changed, strings.Replace(large(changed), "x", "y", 1), revisions[changed], 0)
	moved.remove(deleted, revisions[deleted])
	now, _ := all(t, client.Client)
	if now[deleted] != nil || !strings.HasPrefix(string(now[changed].Value), "y") {
		t.Errorf("%s exists: %t, %s begins with %.1s", deleted, now[deleted] != nil, changed, now[changed].Value)
	}
	if again := tooLarge(t, client.Client, changed, now[changed].ModRevision); again != refused {
		t.Errorf("SQLite says\n%s\nand etcd says\n%s", refused, again)
	}
}

// tooLarge writes an object that is too large, and returns the error.
func tooLarge(t *testing.T, client clientv3.KV, key string, was int64) string {
	t.Helper()
	_, err := client.Txn(context.Background()).If(clientv3.Compare(clientv3.ModRevision(key), "=", was)).
		Then(clientv3.OpPut(key, large(key)+strings.Repeat("x", 100))).Else(clientv3.OpGet(key)).Commit()
	if !apierrors.IsRequestEntityTooLargeError(err) {
		t.Fatalf("got %T %v, want that %s is too large", err, err, key)
	}
	return err.Error()
}

// TestTooLarge wants a member that accepts less than SQLite to take over only what it
// can change, and to name what is larger. What is too large no more, or deleted, does
// not count.
func TestTooLarge(t *testing.T) {
	folder := t.TempDir()
	s := startSQLite(t, folder)
	value := strings.Repeat("x", 1<<20)
	shrunk := s.set("/registry/configmaps/default/shrunk", value, 0, 0)
	s.set("/registry/configmaps/default/shrunk", "x", shrunk, 0)
	s.remove("/registry/configmaps/default/deleted", s.set("/registry/configmaps/default/deleted", value, 0, 0))
	last := s.set("/registry/configmaps/default/too-large", value, 0, 0)
	s.stop()

	h := newHost(t, 45, nil)
	settings := h.config()
	settings.Args = []string{"max-request-bytes=1000000"}
	from := sqlite.New(sqlite.Config{Dir: folder})
	err := Migrate(t.Context(), settings, from.Export)
	size := proto.Size(sizes.Change([]byte("/registry/configmaps/default/too-large"), []byte(value), last, 0))
	want := fmt.Sprintf("at most 1000000 bytes for an object, and these objects are larger: /registry/configmaps/default/too-large (%d bytes).", size)
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("etcd-arg: [max-request-bytes=%d]", size)) {
		t.Fatalf("got %v, want %s", err, want)
	}
	if Exists(settings.Dir) {
		t.Fatal("there is a member now")
	}
	settings.Args = []string{fmt.Sprintf("max-request-bytes=%d", size)}
	if err := Migrate(t.Context(), settings, from.Export); err != nil {
		t.Fatal(err)
	}

	// A restore is refused alike, and changes nothing.
	saved, folder := filepath.Join(t.TempDir(), "saved"), t.TempDir()
	text, err := os.ReadFile(database(settings.Dir))
	if err := errors.Join(err, os.WriteFile(saved, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	settings.Args = []string{"max-request-bytes=1000000"}
	if err := New(settings).Prepare(t.Context(), saved, folder, 9e9); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
