// Package direct is an etcd client of a kine backend in the same process, without a
// connection. Where etcd's own client sends requests over gRPC, HTTP/2 and a socket,
// this one calls functions. The API server keeps its objects through it. kine's server
// answers the requests, so they mean here what they mean there. The watches are this
// package's own.
package direct

import (
	"context"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/lists"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
)

// Etcd is the part of etcd's API that answers the clients' requests: kine's
// KVServerBridge.
type Etcd interface {
	pb.KVServer
	pb.LeaseServer
	pb.MaintenanceServer
}

// Backend is a backend of kine that can watch some keys only, and tells when its
// watches have caught up.
type Backend interface {
	server.Backend
	// WatchRange is Watch for the keys from key to end, or key alone if end is empty.
	WatchRange(ctx context.Context, key, end string, revision int64) server.WatchResult
	// WaitForSyncTo returns when every watch has its events up to revision.
	WaitForSyncTo(revision int64)
}

// progress is the interval at which all watches learn the current revision, also
// those that see no events. It is shorter than the time that compaction keeps
// revisions. The API server's caches can therefore always be compared with the
// datastore at their revision, and watches can be resumed.
const progress = time.Minute

// Server answers the clients in this process until it is closed.
type Server struct {
	backend Backend
	etcd    Etcd
	// answer wraps every request and every start of a watch, like a gRPC server's
	// interceptor. Its last argument but one is nil.
	answer grpc.UnaryServerInterceptor
	// ctx ends watches.
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	watches map[*watch]bool
	running sync.WaitGroup
}

// NewServer returns a server of backend's watches. etcd handles all other
// requests.
func NewServer(backend Backend, etcd Etcd, answer grpc.UnaryServerInterceptor) *Server {
	s := &Server{backend: backend, etcd: etcd, answer: answer, watches: map[*watch]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(s.tellProgress)
	return s
}

// Close ends every watch and waits for the requests that are being answered.
// Later requests fail.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
}

// begin tells whether a request may proceed. If so, the caller calls
// s.running.Done at the end.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// NewClient returns a client. RequestProgress tells all watches of one client
// together, so each resource of the API server needs a client of its own.
func (s *Server) NewClient() *kubernetes.Client {
	c := clientv3.NewCtxClient(s.ctx)
	c.KV = clientv3.NewKVFromKVClient(kv{s}, c)
	c.Lease = clientv3.NewLeaseFromLeaseClient(lease{Server: s}, c, 0)
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(maintenance{Server: s}, c)
	c.Watcher = &watcher{server: s, ctx: c.Ctx()}
	client := &kubernetes.Client{Client: c}
	client.Kubernetes = client
	return client
}

// call has s handle a request, and returns errors in the form that they have over
// gRPC.
func call[Request, Response any](ctx context.Context, s *Server, r Request, handle func(context.Context, Request) (Response, error)) (Response, error) {
	var response Response
	open := s.begin()
	if open {
		defer s.running.Done()
	}
	// answer is called for a closed server too, because it knows why the server
	// has closed. If the datastore only stopped, clients ask again until their
	// time is up; other reasons must reach them.
	_, err := s.answer(ctx, r, nil, func(ctx context.Context, _ any) (_ any, err error) {
		if !open {
			return nil, status.Error(codes.Unavailable, "the datastore has stopped")
		}
		response, err = handle(ctx, r)
		return response, err
	})
	if _, ok := status.FromError(err); !ok {
		err = status.FromContextError(err).Err()
	}
	return response, err
}

// kv is a pb.KVClient.
type kv struct{ *Server }

func (c kv) Range(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	// kine refuses serializable reads. The answer to any other read is right for them too.
	r.Serializable = false
	return call(ctx, c.Server, r, c.etcd.Range)
}

func (c kv) RangeStream(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (pb.KV_RangeStreamClient, error) {
	r.Serializable = false
	return lists.Call(ctx, c.ctx, func(stream pb.KV_RangeStreamServer) error {
		_, err := call(stream.Context(), c.Server, r, func(_ context.Context, r *pb.RangeRequest) (struct{}, error) {
			return struct{}{}, c.etcd.RangeStream(r, stream)
		})
		return err
	}), nil
}

func (c kv) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	if err := sizes.Check(r, r.Key, sizes.Limit); err != nil {
		return nil, err
	}
	return call(ctx, c.Server, r, c.etcd.Put)
}

func (c kv) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return call(ctx, c.Server, r, c.etcd.DeleteRange)
}

func (c kv) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	if err := sizes.CheckTxn(r, sizes.Limit); err != nil {
		return nil, err
	}
	return call(ctx, c.Server, r, c.etcd.Txn)
}

func (c kv) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return call(ctx, c.Server, r, c.etcd.Compact)
}

// lease is the part of pb.LeaseClient that kine has. Its leases are lifetimes in
// seconds, and nothing keeps them alive.
type lease struct {
	pb.LeaseClient
	*Server
}

func (c lease) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return call(ctx, c.Server, r, c.etcd.LeaseGrant)
}

// maintenance is the part of pb.MaintenanceClient that kine has.
type maintenance struct {
	pb.MaintenanceClient
	*Server
}

func (c maintenance) Status(ctx context.Context, r *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return call(ctx, c.Server, r, c.etcd.Status)
}
