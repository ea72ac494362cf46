// Package direct is an etcd client of a kine backend in the same process: what
// etcd's own client would send over gRPC, HTTP/2 and a socket are calls here.
// The API server keeps its objects through it. Requests mean what kine's server
// makes of them, because they are answered by it; watches are this package's.
package direct

import (
	"context"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MaxRequestBytes is how large a request may be: etcd's 1.5 MiB for an object
// (go.etcd.io/etcd/server/v3/embed/config.go) and what is around it.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/embed/config.go DefaultMaxRequestBytes
const MaxRequestBytes = 2 << 20

// Etcd is the part of etcd's API that is asked for: kine's KVServerBridge.
type Etcd interface {
	pb.KVServer
	pb.LeaseServer
	pb.MaintenanceServer
}

// progress is how often all watches are told how far they are, also those that see
// nothing. It is less than what compaction leaves: the API server's caches can be
// compared with the datastore as it was at their revision, and watches be resumed.
const progress = time.Minute

// Server answers the clients in this process until it is closed.
type Server struct {
	backend server.Backend
	etcd    Etcd
	// answer is around every request and every start of a watch, as a gRPC
	// server's interceptor would be. Its last argument but one is nil.
	answer grpc.UnaryServerInterceptor
	// ctx ends watches.
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	watches map[*watch]bool
	running sync.WaitGroup
}

// NewServer returns a server for backend, whose requests etcd handles.
func NewServer(backend server.Backend, etcd Etcd, answer grpc.UnaryServerInterceptor) *Server {
	s := &Server{backend: backend, etcd: etcd, answer: answer, watches: map[*watch]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.running.Go(s.tellProgress)
	return s
}

// Close ends every watch and waits for the requests that are being answered.
// Later ones get an error.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
}

// begin tells whether a request may go on; it then calls s.running.Done.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// NewClient returns a client. Its watches are told of progress together: each
// resource of the API server wants a client of its own.
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

// call has s handle a request, and returns errors as they would have arrived
// over gRPC.
func call[Request, Response any](ctx context.Context, s *Server, r Request, handle func(context.Context, Request) (Response, error)) (Response, error) {
	var response Response
	open := s.begin()
	if open {
		defer s.running.Done()
	}
	// Also when it is closed: why it is may be more than that it has stopped, and
	// clients ask again after the latter until their time is up.
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
	return call(ctx, c.Server, r, c.etcd.Range)
}

func (c kv) Put(ctx context.Context, r *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	if r.Size() > MaxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	return call(ctx, c.Server, r, c.etcd.Put)
}

func (c kv) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return call(ctx, c.Server, r, c.etcd.DeleteRange)
}

func (c kv) Txn(ctx context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	if r.Size() > MaxRequestBytes {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	return call(ctx, c.Server, r, c.etcd.Txn)
}

func (c kv) Compact(ctx context.Context, r *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return call(ctx, c.Server, r, c.etcd.Compact)
}

// lease is as much of a pb.LeaseClient as kine has: its leases are lifetimes in
// seconds, which nothing keeps alive.
type lease struct {
	pb.LeaseClient
	*Server
}

func (c lease) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	return call(ctx, c.Server, r, c.etcd.LeaseGrant)
}

// maintenance is as much of a pb.MaintenanceClient as kine has.
type maintenance struct {
	pb.MaintenanceClient
	*Server
}

func (c maintenance) Status(ctx context.Context, r *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return call(ctx, c.Server, r, c.etcd.Status)
}
