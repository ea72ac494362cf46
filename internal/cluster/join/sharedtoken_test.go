package join

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// startToken runs the shared token of a server until the test ends or stop is called.
func startToken(t *testing.T, dir datadir.Dir, configured string, store func() (*clientv3.Client, error)) (token *SharedToken, stop func()) {
	t.Helper()
	token = NewSharedToken(dir, configured, store)
	if token.Known() == nil {
		t.Error("the token is known before anybody was asked")
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	ready := make(chan struct{})
	running.Go(func() {
		if err := token.Run(ctx, func() { close(ready) }); err != nil {
			t.Error(err)
		}
	})
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the component was not ready within a minute")
	}
	if err := token.Known(); err != nil {
		t.Error(err)
	}
	return token, stop
}

func TestSharedToken(t *testing.T) {
	url := etcd.Start(t)
	store := func() (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	}
	one, two, down := newServerDir(t, "the key", "old"), newServerDir(t, "the key", "old"), newServerDir(t, "the key", "old")
	first, _ := startToken(t, one, "", store)
	startToken(t, two, "old", store)
	_, stop := startToken(t, down, "", store)
	stop()
	client, err := store()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := GiveStored(t.Context(), client.KV, one); err != nil {
		t.Fatal(err)
	}

	rotated, err := first.Rotate(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	token, err := ParseToken(rotated)
	if err != nil {
		t.Fatal(err)
	}
	if !CheckSecret(one, ServerUser, token.Secret) || CheckSecret(one, ServerUser, "old") {
		t.Error("the server that was asked has another token")
	}
	for deadline := time.Now().Add(time.Minute); !CheckSecret(two, ServerUser, token.Secret); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the other server did not get the token in time")
		}
	}
	if CheckSecret(two, ServerUser, "old") {
		t.Error("the other server still accepts the old token")
	}
	answer, err := client.Get(t.Context(), TokenKey)
	if err != nil || len(answer.Kvs) != 1 || strings.Contains(string(answer.Kvs[0].Value), token.Secret) {
		t.Errorf("the token can be read, or is not there: %v, %v", answer, err)
	}

	// A server that was down has the old token, in its file or configuration.
	if found, err := TakeStored(t.Context(), client.KV, down, "old"); err != nil || !found {
		t.Errorf("start of a server that was down: got %v, want the secrets found", err)
	}
	if found, err := TakeStored(t.Context(), client.KV, newServerDir(t, "", ""), token.Secret); err != nil || !found {
		t.Errorf("a server does not join with the new token: %v", err)
	}
	if _, err := TakeStored(t.Context(), client.KV, newServerDir(t, "", ""), "old"); err == nil {
		t.Error("a server joins with the old token")
	}
	startToken(t, down, "old", store)
	if !CheckSecret(down, ServerUser, token.Secret) {
		t.Error("a server that was down has the old token")
	}

	if _, err := openToken(newServerDir(t, "another key", ""), answer.Kvs[0].Value); err == nil || !strings.Contains(err.Error(), "all servers of a cluster need the same file") {
		t.Errorf("open the token with another key: got error %v, want that all servers need the same file", err)
	}
}

// A single server has no shared token, and its token is always known.
func TestNoSharedToken(t *testing.T) {
	var none *SharedToken
	if err := none.Known(); err != nil {
		t.Error(err)
	}
}
