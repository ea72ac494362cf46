package join

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// oneKey is a datastore with one key.
type oneKey struct {
	clientv3.KV
	value    string
	revision int64
	// meanwhile is called once, before the next write.
	meanwhile func()
}

func (o *oneKey) Get(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if o.value == "" || key != StoredKey {
		return &clientv3.GetResponse{}, nil
	}
	return &clientv3.GetResponse{Kvs: []*mvccpb.KeyValue{{Value: []byte(o.value), ModRevision: o.revision}}}, nil
}

type oneTxn struct {
	clientv3.Txn
	store *oneKey
	was   int64
	put   string
}

func (o *oneKey) Txn(context.Context) clientv3.Txn { return &oneTxn{store: o} }
func (t *oneTxn) If(compared ...clientv3.Cmp) clientv3.Txn {
	t.was = compared[0].GetCompare().GetModRevision()
	return t
}
func (t *oneTxn) Then(ops ...clientv3.Op) clientv3.Txn { t.put = string(ops[0].ValueBytes()); return t }
func (t *oneTxn) Else(...clientv3.Op) clientv3.Txn     { return t }
func (t *oneTxn) Commit() (*clientv3.TxnResponse, error) {
	if meanwhile := t.store.meanwhile; meanwhile != nil {
		t.store.meanwhile = nil
		meanwhile()
	}
	if t.store.revision != t.was {
		return &clientv3.TxnResponse{}, nil
	}
	t.store.value = t.put
	t.store.revision++
	return &clientv3.TxnResponse{Succeeded: true}, nil
}

// newServerDir makes a data directory with an authority's key, and a token if secret is
// not empty.
func newServerDir(t *testing.T, key, secret string) datadir.Dir {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	if err := dir.MakeServer(); err != nil {
		t.Fatal(err)
	}
	if key != "" {
		if err := os.WriteFile(filepath.Join(dir.ServerTLS(), "server-ca.key"), []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir.ServerTLS(), "server-ca.crt"), []byte("certificate of "+key), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if secret != "" {
		token := Token{strings.Repeat("0", 64), ServerUser, secret}
		if err := keepToken(dir.ServerToken(), token.String()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestStoredSecrets(t *testing.T) {
	store, ctx := &oneKey{}, t.Context()
	first := newServerDir(t, "private", "secret")
	if found, err := TakeStored(ctx, store, first, ""); found || err != nil {
		t.Fatalf("an empty datastore: %v %v", found, err)
	}
	if err := GiveStored(ctx, store, first); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(store.value, "private") {
		t.Error("the secrets are not encrypted")
	}
	if err := GiveStored(ctx, store, first); err == nil || !strings.Contains(err.Error(), "at the same moment") {
		t.Errorf("two that begin: %v", err)
	}
	if found, err := TakeStored(ctx, store, first, ""); !found || err != nil {
		t.Errorf("the first again: %v %v", found, err)
	}
	second := newServerDir(t, "", "")
	for token, want := range map[string]string{"": "give this server the cluster's token", "other": "this server's token is not the cluster's"} {
		if _, err := TakeStored(ctx, store, second, token); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("token %q: %v, want %s", token, err, want)
		}
	}
	if found, err := TakeStored(ctx, store, second, "secret"); !found || err != nil {
		t.Fatalf("the second: %v %v", found, err)
	}
	if key, err := os.ReadFile(filepath.Join(second.ServerTLS(), "server-ca.key")); err != nil || string(key) != "private" {
		t.Errorf("the second has %q: %v", key, err)
	}
	if _, err := TakeStored(ctx, store, newServerDir(t, "another", "secret"), ""); err == nil || !strings.Contains(err.Error(), "are not those of the cluster") {
		t.Errorf("a server of another cluster: %v", err)
	}
	if _, err := RotateToken(first, ""); err != nil {
		t.Fatal(err)
	}
	before := store.value
	if found, err := TakeStored(ctx, store, first, ""); !found || err != nil || store.value == before {
		t.Errorf("after another token was made: got %v, %v, want the secrets stored again", found, err)
	}
	if found, err := TakeStored(ctx, store, first, ""); !found || err != nil {
		t.Errorf("and again: %v %v", found, err)
	}
}

// TestResealStored checks that another server that writes first, with older knowledge,
// does not win.
func TestResealStored(t *testing.T) {
	store, ctx := &oneKey{}, t.Context()
	dir := newServerDir(t, "private", "old")
	if err := GiveStored(ctx, store, dir); err != nil {
		t.Fatal(err)
	}
	before := store.value
	store.meanwhile = func() { store.value, store.revision = before, store.revision+1 }
	if err := resealStored(ctx, store, dir, "new"); err != nil {
		t.Fatal(err)
	}
	if found, err := TakeStored(ctx, store, newServerDir(t, "", ""), "new"); !found || err != nil {
		t.Errorf("a server with the new token: %v %v", found, err)
	}
}
