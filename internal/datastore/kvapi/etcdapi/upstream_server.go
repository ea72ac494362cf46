// Follows github.com/k3s-io/kine v0.17.5, pkg/server/server.go.
// Follows github.com/k3s-io/kine v0.17.5, pkg/endpoint/endpoint.go.

package etcdapi

import (
	"math"
	"time"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// register makes a gRPC server answer with k where kine's Register
// (pkg/server/server.go) would make it answer with kine's own server.
//
//upstream:follows github.com/k3s-io/kine/pkg/server/server.go KVServerBridge.Register
func (k *keys) register(s *grpc.Server) {
	pb.RegisterLeaseServer(s, k)
	pb.RegisterWatchServer(s, k)
	pb.RegisterKVServer(s, k)
	pb.RegisterClusterServer(s, k)
	pb.RegisterMaintenanceServer(s, k)
	healthy := health.NewServer()
	healthy.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, healthy)
	reflection.Register(s)
}

// newServer makes a gRPC server with etcd's limits and timeouts
// (go.etcd.io/etcd/server/v3/embed/config.go), as kine's pkg/endpoint does.
//
//upstream:follows github.com/k3s-io/kine/pkg/endpoint/endpoint.go grpcServer
//upstream:relies-on go.etcd.io/etcd/server/v3/embed/config.go DefaultGRPCKeepAliveMinTime DefaultGRPCKeepAliveInterval DefaultGRPCKeepAliveTimeout
func newServer(answer grpc.UnaryServerInterceptor) *grpc.Server {
	return grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.MaxRecvMsgSize(sizes.Limit),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(answer),
	)
}
