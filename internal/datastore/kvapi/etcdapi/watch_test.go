package etcdapi

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/direct"
)

// recorder is a stream that keeps the revisions of what is sent.
type recorder struct {
	pb.Watch_WatchServer
	revisions []int64
}

func (r *recorder) Send(response *pb.WatchResponse) error {
	r.revisions = append(r.revisions, response.Header.Revision)
	return nil
}

// A watch that has got an event is told no progress up to an earlier revision.
func TestProgressDoesNotGoBack(t *testing.T) {
	var stream recorder
	f := newForward(&stream)
	send := func(id, revision int64, change func(*pb.WatchResponse)) {
		t.Helper()
		response := &pb.WatchResponse{WatchId: id, Header: header(revision)}
		change(response)
		if err := f.Send(response); err != nil {
			t.Fatal(err)
		}
	}
	created := func(r *pb.WatchResponse) { r.Created = true }
	event := func(r *pb.WatchResponse) { r.Events = []*mvccpb.Event{{}} }
	canceled := func(r *pb.WatchResponse) { r.Canceled, r.CompactRevision = true, 3 }
	progress := func(*pb.WatchResponse) {}
	const all = clientv3.InvalidWatchID

	send(1, 5, created)
	send(2, 5, created)
	send(all, 6, progress)
	send(1, 8, event)
	send(all, 7, progress) // too late for the first watch
	send(2, 7, progress)
	send(1, 7, progress) // too late
	send(2, 6, progress) // too late
	send(1, 8, progress)
	send(1, 8, canceled)
	send(all, 7, progress) // only the second watch is left
	if want := []int64{5, 5, 6, 8, 7, 8, 8, 7}; !slices.Equal(stream.revisions, want) {
		t.Errorf("sent %v, want %v", stream.revisions, want)
	}
}

// ending is a backend that ends the first watch when it is told to, and has a change for the next one.
type ending struct {
	direct.Backend
	end chan struct{}
	// watches counts the watches.
	watches atomic.Int64
}

func (e *ending) Watch(ctx context.Context, _ int64) server.WatchResult {
	events := make(chan server.EventBatch, 1)
	go func() {
		defer close(events)
		if e.watches.Add(1) == 1 {
			select {
			case <-e.end:
			case <-ctx.Done():
			}
			return
		}
		events <- server.EventBatch{CurrentRev: 2, Events: []*server.Event{{Create: true, KV: &server.KeyValue{Key: "/a", ModRevision: 2, CreateRevision: 2}}}}
		<-ctx.Done()
	}()
	return server.WatchResult{CurrentRevision: 1, Eventc: events, Errorc: make(chan error)}
}

func (*ending) CurrentRevision(context.Context) (int64, error) { return 1, nil }

// TestWatchIsResumed has a datastore end a watch. The client notices nothing, and gets what comes next.
func TestWatchIsResumed(t *testing.T) {
	backend := &ending{end: make(chan struct{})}
	listener := bufconn.Listen(1 << 20)
	rpc := grpc.NewServer()
	pb.RegisterWatchServer(rpc, &keys{KVServerBridge: server.New(backend, "unix", progressInterval, emulatedETCDVersion)})
	go func() { _ = rpc.Serve(listener) }()
	defer rpc.Stop()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"passthrough:///a"}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := client.Watch(ctx, "/a", clientv3.WithRev(1), clientv3.WithCreatedNotify())
	if first := <-watch; !first.Created {
		t.Fatalf("the watch begins with %+v", first)
	}
	close(backend.end)
	for response := range watch {
		if err := response.Err(); err != nil {
			t.Fatal(err)
		}
		if len(response.Events) > 0 {
			return
		}
	}
	t.Fatal("the watch has ended")
}
