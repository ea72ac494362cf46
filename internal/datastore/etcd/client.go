package etcd

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// A read is tried again as etcd's own client would over a connection
// (client/v3/retry.go): a new leader may have been chosen meanwhile.
const (
	readAttempts = 100
	readWait     = 25 * time.Millisecond
)

// newClient returns a client that needs no connection. Each has watches of its
// own, which are told of progress together.
func newClient(server *etcdserver.EtcdServer, meter *measure.Meter) *kubernetes.Client {
	c := v3client.New(server)
	c.KV = clientv3.NewKVFromKVClient(patient{adapter.KvServerToKvClient(v3rpc.NewQuotaKVServer(server)), meter}, c)
	client := &kubernetes.Client{Client: c}
	client.Kubernetes = client
	return client
}

// patient is a pb.KVClient that tries reads again, and notes how long requests
// take.
type patient struct {
	pb.KVClient
	meter *measure.Meter
}

// Txn implements pb.KVClient: it is how the API server writes.
func (p patient) Txn(ctx context.Context, r *pb.TxnRequest, options ...grpc.CallOption) (*pb.TxnResponse, error) {
	key := ""
	if len(r.Compare) > 0 {
		key = string(r.Compare[0].Key)
	}
	defer p.meter.Done("write", key, time.Now())
	return p.KVClient.Txn(ctx, r, options...)
}

// Range implements pb.KVClient.
func (p patient) Range(ctx context.Context, r *pb.RangeRequest, options ...grpc.CallOption) (*pb.RangeResponse, error) {
	defer p.meter.Done("read", string(r.Key), time.Now())
	for attempt := 1; ; attempt++ {
		answer, err := p.KVClient.Range(ctx, r, options...)
		// After a timeout there is no quorum, and has not been for seconds.
		if status.Code(err) != codes.Unavailable || errors.Is(err, rpctypes.ErrGRPCTimeout) || attempt == readAttempts {
			return answer, err
		}
		select {
		case <-time.After(readWait):
		case <-ctx.Done():
			return nil, err
		}
	}
}
