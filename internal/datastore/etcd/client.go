package etcd

import (
	"bytes"
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
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/lists"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// Requests that fail because another leader is elected are repeated: reads as
// etcd's own client does over a connection (client/v3/retry.go), and writes that
// compare. attempts limits the number of tries, and attemptWait is the pause
// between them.
const (
	//upstream:relies-on go.etcd.io/etcd/client/v3/retry.go RetryKVClient isSafeRetryImmutableRPC
	attempts    = 100
	attemptWait = 25 * time.Millisecond
	// lostAfter is how long after a change of leader a write without an answer
	// counts as lost.
	lostAfter = 250 * time.Millisecond
)

// errLost says that a write was probably lost with the leader that it was sent to.
var errLost = errors.New("another leader was elected meanwhile")

// newClient returns a client that needs no connection. RequestProgress tells all
// watches of one client together.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/v3client/v3client.go New
func (m *Member) newClient(server *etcdserver.EtcdServer) *kubernetes.Client {
	c, kv := v3client.New(server), v3rpc.NewQuotaKVServer(server)
	c.KV = clientv3.NewKVFromKVClient(patient{
		KVClient:      adapter.KvServerToKvClient(kv),
		server:        kv,
		life:          c.Ctx(),
		meter:         m.meter,
		limit:         int(server.Cfg.MaxRequestBytes) - overhead,
		leaderChanged: server.LeaderChangedNotify,
		quorum:        m.outage.fault,
	}, c)
	client := &kubernetes.Client{Client: c}
	client.Kubernetes = client
	return client
}

// patient is a pb.KVClient that repeats requests as long as there is a quorum, and
// notes how long requests take.
type patient struct {
	pb.KVClient
	// server answers RangeStream, which KVClient refuses.
	//upstream:relies-on go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter/kv_client_adapter.go kvs2kvc.RangeStream
	server pb.KVServer
	// life ends when the client is closed.
	life  context.Context
	meter *measure.Meter
	// limit is the size in bytes of the largest write.
	limit int
	// leaderChanged returns a channel that is closed when another leader is
	// known.
	leaderChanged func() <-chan struct{}
	// quorum returns an error if nothing can be read or written because there is
	// no quorum.
	quorum func() error
}

// Range implements pb.KVClient.
func (p patient) Range(ctx context.Context, r *pb.RangeRequest, options ...grpc.CallOption) (*pb.RangeResponse, error) {
	defer p.meter.Done("read", string(r.Key), time.Now())
	var answer *pb.RangeResponse
	err := p.read(ctx, r, func() (again bool, err error) {
		answer, err = p.KVClient.Range(ctx, r, options...)
		return true, err
	})
	return answer, err
}

// RangeStream implements pb.KVClient. It is repeated until the first part is there.
func (p patient) RangeStream(ctx context.Context, r *pb.RangeRequest, _ ...grpc.CallOption) (pb.KV_RangeStreamClient, error) {
	return lists.Call(ctx, p.life, func(stream pb.KV_RangeStreamServer) error {
		parts := &counted{KV_RangeStreamServer: stream}
		return p.read(stream.Context(), r, func() (again bool, err error) {
			// etcd changes the request.
			err = p.server.RangeStream(proto.Clone(r).(*pb.RangeRequest), parts)
			return parts.sent == 0, err
		})
	}), nil
}

// counted counts the parts of a list.
type counted struct {
	pb.KV_RangeStreamServer
	sent int
}

// Send implements pb.KV_RangeStreamServer.
func (c *counted) Send(part *pb.RangeStreamResponse) error {
	c.sent++
	return c.KV_RangeStreamServer.Send(part)
}

// read calls try until it succeeds, fails for good, or returns false.
func (p patient) read(ctx context.Context, r *pb.RangeRequest, try func() (again bool, err error)) error {
	for attempt := 1; ; attempt++ {
		if err := p.quorum(); err != nil && !r.Serializable {
			return err
		}
		again, err := try()
		// After a timeout there is no quorum, and there has been none for
		// seconds.
		if !again || status.Code(err) != codes.Unavailable || errors.Is(err, rpctypes.ErrGRPCTimeout) || attempt == attempts || loop.Sleep(ctx, attemptWait) != nil {
			return err
		}
	}
}

// Txn implements pb.KVClient. A write that is on its way to a leader that goes away
// is lost, and etcd would report that only nine seconds later. So Txn sends it to
// the next leader. If the first write was not lost after all, the second one fails,
// because the revision that it compares with is no longer the current one.
func (p patient) Txn(ctx context.Context, r *pb.TxnRequest, options ...grpc.CallOption) (*pb.TxnResponse, error) {
	if err := sizes.CheckTxn(r, p.limit); err != nil {
		return nil, err
	}
	if len(r.Compare) == 0 {
		return p.KVClient.Txn(ctx, r, options...)
	}
	defer p.meter.Done("write", string(r.Compare[0].Key), time.Now())
	for attempt := 1; ; attempt++ {
		if err := p.quorum(); err != nil {
			return nil, err
		}
		answer, err := p.propose(ctx, r, options)
		switch {
		case err == nil && !answer.Succeeded && attempt > 1:
			return p.made(ctx, r, answer)
		case !errors.Is(err, errLost) && !unproposed(ctx, err), attempt == attempts, loop.Sleep(ctx, attemptWait) != nil:
			return answer, err
		}
	}
}

// propose makes one attempt. It fails with errLost soon after the leader changes.
func (p patient) propose(ctx context.Context, r *pb.TxnRequest, options []grpc.CallOption) (*pb.TxnResponse, error) {
	trying, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	changed := p.leaderChanged()
	go func() {
		select {
		case <-changed:
			time.AfterFunc(lostAfter, func() { cancel(errLost) })
		case <-trying.Done():
		}
	}()
	answer, err := p.KVClient.Txn(trying, r, options...)
	if err != nil && context.Cause(trying) == errLost {
		return nil, errLost
	}
	return answer, err
}

// unproposed tells whether a write has failed because no leader took it. A leader that hands over
// refuses proposals. While no leader is known, etcd waits as long as a request may take, and then
// returns the error of its own deadline.
//
//upstream:relies-on go.etcd.io/raft/v3/raft.go ErrProposalDropped
//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/v3_server.go EtcdServer.processInternalRaftRequestOnce
func unproposed(ctx context.Context, err error) bool {
	return status.Convert(err).Message() == raft.ErrProposalDropped.Error() ||
		errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// made returns the answer to a repeated transaction that changed nothing. If the
// key has the value that the transaction puts, an earlier attempt put it: objects
// contain unique identities.
func (p patient) made(ctx context.Context, r *pb.TxnRequest, answer *pb.TxnResponse) (*pb.TxnResponse, error) {
	if len(r.Success) != 1 || r.Success[0].GetRequestPut() == nil {
		return answer, nil
	}
	put := r.Success[0].GetRequestPut()
	found, err := p.Range(ctx, &pb.RangeRequest{Key: put.Key})
	if err != nil {
		return nil, err
	}
	if len(found.Kvs) == 0 || !bytes.Equal(found.Kvs[0].Value, put.Value) {
		return answer, nil
	}
	header := found.Header
	header.Revision = found.Kvs[0].ModRevision
	return &pb.TxnResponse{
		Header: header, Succeeded: true,
		Responses: []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: header}}}},
	}, nil
}
