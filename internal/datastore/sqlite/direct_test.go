package sqlite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestSerializableRead wants a read that may be answered by any member to be answered. kine refuses it.
func TestSerializableRead(t *testing.T) {
	local := run(t, shortDir(t)).Endpoint().NewClient()
	defer local.Close()
	if _, err := local.KV.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithSerializable()); err != nil {
		t.Error(err)
	}
}

// The same requests get the same answers in process and over the socket.
func TestDirectAnswersAsTheSocket(t *testing.T) {
	overSocket := run(t, shortDir(t))
	remote := &kubernetes.Client{Client: client(t, overSocket.Endpoint().URL)}
	defer remote.Close()
	remote.Kubernetes = remote
	local := run(t, shortDir(t)).Endpoint().NewClient()
	defer local.Close()
	ctx := context.Background()
	const prefix = "/registry/pods/"
	get := func(key string, opts ...clientv3.OpOption) func(*kubernetes.Client) (any, error) {
		return func(c *kubernetes.Client) (any, error) { return c.KV.Get(ctx, key, opts...) }
	}
	list := func(opts kubernetes.ListOptions) func(*kubernetes.Client) (any, error) {
		return func(c *kubernetes.Client) (any, error) { return c.Kubernetes.List(ctx, prefix, opts) }
	}
	put := func(key, value string, revision int64, opts kubernetes.PutOptions) func(*kubernetes.Client) (any, error) {
		return func(c *kubernetes.Client) (any, error) {
			return c.Kubernetes.OptimisticPut(ctx, key, []byte(value), revision, opts)
		}
	}
	remove := func(key string, revision int64) func(*kubernetes.Client) (any, error) {
		return func(c *kubernetes.Client) (any, error) {
			return c.Kubernetes.OptimisticDelete(ctx, key, revision, kubernetes.DeleteOptions{GetOnFailure: true})
		}
	}
	onFailure := kubernetes.PutOptions{GetOnFailure: true}
	steps := []struct {
		name string
		do   func(*kubernetes.Client) (any, error)
	}{
		{"list of nothing", list(kubernetes.ListOptions{})},
		{"get of nothing", get(prefix + "a")},
		{"create", put(prefix+"a", "1", 0, kubernetes.PutOptions{})},
		{"create again", put(prefix+"a", "2", 0, kubernetes.PutOptions{})},
		{"create again, tell", put(prefix+"a", "2", 0, onFailure)},
		{"create others", func(c *kubernetes.Client) (any, error) {
			for i := range 5 {
				if _, err := c.Kubernetes.OptimisticPut(ctx, fmt.Sprintf("%sb/%d", prefix, i), []byte("x"), 0, kubernetes.PutOptions{}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{"update", func(c *kubernetes.Client) (any, error) {
			now, err := c.Kubernetes.Get(ctx, prefix+"a", kubernetes.GetOptions{})
			if err != nil {
				return nil, err
			}
			return c.Kubernetes.OptimisticPut(ctx, prefix+"a", []byte("2"), now.KV.ModRevision, onFailure)
		}},
		{"conflict", put(prefix+"a", "3", 2, onFailure)},
		{"update of nothing", put(prefix+"none", "3", 2, onFailure)},
		{"delete with conflict", remove(prefix+"a", 2)},
		{"delete", func(c *kubernetes.Client) (any, error) {
			now, err := c.Kubernetes.Get(ctx, prefix+"b/0", kubernetes.GetOptions{})
			if err != nil {
				return nil, err
			}
			return c.Kubernetes.OptimisticDelete(ctx, prefix+"b/0", now.KV.ModRevision, kubernetes.DeleteOptions{})
		}},
		{"delete of nothing", remove(prefix+"none", 2)},
		{"lease", func(c *kubernetes.Client) (any, error) { return c.Grant(ctx, 3600) }},
		{"create with lease", put(prefix+"leased", "1", 0, kubernetes.PutOptions{LeaseID: 3600})},
		{"get", get(prefix + "a")},
		{"get keys only", get(prefix+"a", clientv3.WithKeysOnly())},
		{"get of an old revision", get(prefix+"a", clientv3.WithRev(3))},
		{"get of a future revision", get(prefix+"a", clientv3.WithRev(1000))},
		{"list", list(kubernetes.ListOptions{})},
		{"list a page", list(kubernetes.ListOptions{Limit: 2})},
		{"list the next page", list(kubernetes.ListOptions{Limit: 2, Continue: prefix + "b/1\x00", Revision: 6})},
		{"list of an old revision", list(kubernetes.ListOptions{Revision: 4})},
		{"list of a future revision", list(kubernetes.ListOptions{Revision: 1000})},
		{"stream", stream(prefix)},
		{"stream of an old revision", stream(prefix, clientv3.WithRev(4))},
		{"stream of a future revision", stream(prefix, clientv3.WithRev(1000))},
		{"stream with a limit", stream(prefix, clientv3.WithLimit(2))},
		{"stream of all keys", stream("\x00")},
		{"list keys", get(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())},
		{"count", func(c *kubernetes.Client) (any, error) {
			return c.Kubernetes.Count(ctx, prefix, kubernetes.CountOptions{})
		}},
		{"too large", put(prefix+"large", strings.Repeat("x", 3<<20), 0, kubernetes.PutOptions{})},
		{"unknown transaction", func(c *kubernetes.Client) (any, error) {
			return c.Txn(ctx).Then(clientv3.OpPut("/a", "1"), clientv3.OpPut("/b", "1")).Commit()
		}},
		{"unknown option", get(prefix, clientv3.WithPrefix(), clientv3.WithMinModRev(3))},
		{"write many", func(c *kubernetes.Client) (any, error) {
			for i := range 10 {
				if _, err := c.Kubernetes.OptimisticPut(ctx, fmt.Sprintf("/registry/many/%d", i), []byte("x"), 0, kubernetes.PutOptions{}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{"compact", func(c *kubernetes.Client) (any, error) { return c.Compact(ctx, 8) }},
		{"get of a compacted revision", get(prefix+"a", clientv3.WithRev(3))},
		{"list of a compacted revision", list(kubernetes.ListOptions{Revision: 3})},
		{"status", func(c *kubernetes.Client) (any, error) {
			status, err := c.Status(ctx, overSocket.Endpoint().URL)
			if err != nil {
				return nil, err
			}
			return []any{status.Version, status.DbSize > 0}, nil
		}},
		{"cancelled", func(c *kubernetes.Client) (any, error) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return c.KV.Get(ctx, prefix)
		}},
		{"watch a prefix", watchOf(prefix, 9, 2, clientv3.WithPrefix())},
		{"watch a key", watchOf(prefix+"leased", 9, 1)},
		{"watch from a compacted revision", watchOf(prefix, 3, 1, clientv3.WithPrefix())},
		{"put what is there", func(c *kubernetes.Client) (any, error) {
			return c.Put(ctx, prefix+"a", "put", clientv3.WithPrevKV())
		}},
		{"get what was put", get(prefix + "a")},
		{"delete a key", func(c *kubernetes.Client) (any, error) { return c.Delete(ctx, prefix+"a", clientv3.WithPrevKV()) }},
		{"delete of a range", func(c *kubernetes.Client) (any, error) { return c.Delete(ctx, prefix, clientv3.WithPrefix()) }},
		{"get of a deleted range", get(prefix, clientv3.WithPrefix())},
	}
	for _, step := range steps {
		want, wantErr := step.do(remote)
		got, err := step.do(local)
		switch {
		case step.name == "too large": // over the socket, gRPC refuses it with its own message
			if wantErr == nil || !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("%s: %v, want %v", step.name, err, wantErr)
			}
		case fmt.Sprintf("%T %v", err, err) != fmt.Sprintf("%T %v", wantErr, wantErr):
			t.Errorf("%s: error %T %v, want %T %v", step.name, err, err, wantErr, wantErr)
		case err == nil && text(t, got) != text(t, want):
			t.Errorf("%s:\n got %s\nwant %s", step.name, text(t, got), text(t, want))
		}
	}
}

func text(t *testing.T, answer any) string {
	t.Helper()
	encoded, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// stream returns the keys that begin with prefix, or all keys, in the parts that a
// stream has.
func stream(prefix string, opts ...clientv3.OpOption) func(*kubernetes.Client) (any, error) {
	end := clientv3.GetPrefixRangeEnd(prefix)
	if prefix == "\x00" {
		end = prefix
	}
	return func(c *kubernetes.Client) (any, error) {
		parts, err := c.GetStream(context.Background(), prefix, append(opts, clientv3.WithRange(end))...)
		if err != nil {
			return nil, err
		}
		return clientv3.GetStreamToGetResponse(parts)
	}
}

// watchOf returns the first n events of a watch from revision, or the watch's
// error.
func watchOf(key string, revision int64, n int, opts ...clientv3.OpOption) func(*kubernetes.Client) (any, error) {
	return func(c *kubernetes.Client) (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		var events []*clientv3.Event
		for response := range c.Watch(ctx, key, append(opts, clientv3.WithRev(revision), clientv3.WithPrevKV())...) {
			if err := response.Err(); err != nil {
				return nil, fmt.Errorf("%w at %d", err, response.CompactRevision)
			}
			if events = append(events, response.Events...); len(events) >= n {
				break
			}
		}
		return events, nil
	}
}

// Progress comes after all events up to its revision. Only the watches of the
// stream that asked for it get it.
func TestDirectProgress(t *testing.T) {
	c := run(t, shortDir(t)).Endpoint().NewClient()
	defer c.Close()
	ctx := t.Context()
	cacheCtx := metadata.NewOutgoingContext(ctx, metadata.Pairs("source", "cache"))
	watch := c.Watch(cacheCtx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(1), clientv3.WithProgressNotify())
	other := c.Watch(ctx, "/registry/pods/", clientv3.WithPrefix(), clientv3.WithRev(1))
	const writes = 200
	var last int64
	for i := range writes {
		made, err := create(c.Client, fmt.Sprintf("/registry/pods/%d", i), "x")
		if err != nil {
			t.Fatal(err)
		}
		last = made.Header.Revision
		if err := c.RequestProgress(cacheCtx); err != nil {
			t.Fatal(err)
		}
	}
	var seen, progress int64
	events := 0
	for progress < last {
		response := <-watch
		if response.Header.Revision < max(seen, progress) {
			t.Fatalf("revision %d after %d", response.Header.Revision, max(seen, progress))
		}
		if response.IsProgressNotify() {
			progress = response.Header.Revision
			continue
		}
		events += len(response.Events)
		seen = response.Header.Revision
	}
	if events != writes {
		t.Errorf("%d events before progress to %d, want %d", events, last, writes)
	}
	for events = 0; events < writes; {
		response := <-other
		if response.IsProgressNotify() {
			t.Fatal("a watch of another stream was told of progress")
		}
		events += len(response.Events)
	}
}

// A watch whose client is slow misses nothing.
func TestDirectWaitsForSlowClients(t *testing.T) {
	c := run(t, shortDir(t)).Endpoint().NewClient()
	defer c.Close()
	watch := c.Watch(t.Context(), "/registry/a/", clientv3.WithPrefix(), clientv3.WithRev(1))
	var want, got []int64
	for i := range 3 * watchBuffer {
		made, err := create(c.Client, fmt.Sprintf("/registry/a/%d", i), "x")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, made.Header.Revision)
	}
	for len(got) < len(want) {
		response, ok := <-watch
		if !ok {
			t.Fatalf("the watch ended after %d events", len(got))
		}
		for _, e := range response.Events {
			got = append(got, e.Kv.ModRevision)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Watches end with their context, their client and the datastore. A client that
// remains gets errors.
func TestDirectEnds(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	ctx, cancel := context.WithCancel(context.Background())
	closed, left := r.Endpoint().NewClient(), r.Endpoint().NewClient()
	watches := []clientv3.WatchChan{left.Watch(ctx, "/a"), closed.Watch(context.Background(), "/a"), left.Watch(context.Background(), "/a")}
	cancel()
	for range watches[0] {
	}
	closed.Close()
	for range watches[1] {
	}
	r.stop(t)
	for range watches[2] {
	}
	for range left.Watch(context.Background(), "/a") {
	}
	if _, err := left.KV.Get(context.Background(), "/a"); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("a request after the stop: %v", err)
	}
	if err := left.RequestProgress(context.Background()); err == nil {
		t.Error("a request for progress after the stop succeeds")
	}
	checkNothingLeft(t, folder)
}

// Damage is reported in process too, and ends a watch.
func TestDirectDamage(t *testing.T) {
	folder := shortDir(t)
	r := run(t, folder)
	c := r.Endpoint().NewClient()
	defer c.Close()
	// This is more than the connections cache.
	for i := range 400 {
		if _, err := create(c.Client, fmt.Sprintf("/registry/%d", i), strings.Repeat("x", 50000)); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(config(folder).Dir, "state.db")
	execute(t, file, "PRAGMA wal_checkpoint(TRUNCATE)")
	overwrite(t, file, 5*4096, bytes.Repeat([]byte("kedge"), 4<<20/5))
	list, err := c.KV.Get(t.Context(), "/registry/", clientv3.WithPrefix())
	if status.Code(err) != codes.DataLoss {
		t.Errorf("a list got %v %v", list, err)
	}
	for response := range c.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		t.Errorf("a watch got %v", response)
	}
	if err := r.fails(t); !errors.Is(err, errDamaged) {
		t.Errorf("got %v", err)
	}
	if _, err := c.KV.Get(t.Context(), "/a"); status.Code(err) != codes.DataLoss {
		t.Errorf("after the end: got error %v, want DataLoss, so that clients do not ask again", err)
	}
}
