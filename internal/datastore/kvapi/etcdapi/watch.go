package etcdapi

import (
	"context"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// errWatchEnded ends a stream whose watches the datastore has ended.
var errWatchEnded = status.Error(codes.Unavailable, "the datastore has ended a watch: it can be resumed")

// Watch implements pb.WatchServer. It differs from kine's server in two ways.
//
// kine's server reads the current revision and reports it as progress a little later. Meanwhile it may send later
// events (pkg/server/watch.go). A client would take the report for a step back.
//
// If the datastore ends a watch, because it was away for a while, kine's server tells the client that the watch is
// canceled. etcd's client does not resume such a watch. If a report of progress follows at once, it even panics: it sends
// the report to a channel that it has closed. Here the stream ends, and the client resumes all of its watches.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/watch.go server.Send watcher.Cancel watcher.ProgressAll watcher.ProgressIfSynced
//upstream:relies-on go.etcd.io/etcd/client/v3/watch.go watchGRPCStream.run watchGRPCStream.broadcastResponse
func (k *keys) Watch(stream pb.Watch_WatchServer) error {
	f := newForward(stream)
	go f.receive()
	return k.KVServerBridge.Watch(f)
}

// forward is a stream of watches whose revisions never go back. kine's server calls Send under a lock.
type forward struct {
	pb.Watch_WatchServer
	// sent has the last revision that each watch was told.
	sent map[int64]int64
	// requests has what the client sends. ended is closed when the datastore has ended a watch.
	requests chan request
	ended    chan struct{}
	end      sync.Once

	mu sync.Mutex
	// canceled has the watches that the client has canceled, until it is told.
	canceled map[int64]bool
}

type request struct {
	*pb.WatchRequest
	err error
}

func newForward(stream pb.Watch_WatchServer) *forward {
	return &forward{
		Watch_WatchServer: stream, sent: map[int64]int64{}, requests: make(chan request), ended: make(chan struct{}), canceled: map[int64]bool{},
	}
}

// receive passes on requests until the stream ends.
func (f *forward) receive() {
	for {
		r, err := f.Watch_WatchServer.Recv()
		select {
		case f.requests <- request{r, err}:
		case <-f.Context().Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// Recv implements pb.Watch_WatchServer.
func (f *forward) Recv() (*pb.WatchRequest, error) {
	select {
	case r := <-f.requests:
		if cancel := r.GetCancelRequest(); cancel != nil {
			f.mu.Lock()
			f.canceled[cancel.WatchId] = true
			f.mu.Unlock()
		}
		return r.WatchRequest, r.err
	case <-f.ended:
		return nil, errWatchEnded
	case <-f.Context().Done():
		return nil, context.Cause(f.Context())
	}
}

// Send sends a response, except a report of progress that comes too late. Clients that need one ask
// again.
func (f *forward) Send(r *pb.WatchResponse) error {
	switch {
	case r.Canceled:
		delete(f.sent, r.WatchId)
		if f.isLost(r) {
			f.end.Do(func() { close(f.ended) })
			return nil
		}
	case r.Created, len(r.Events) > 0:
		f.sent[r.WatchId] = r.Header.Revision
	default:
		for id, revision := range f.sent {
			if f.concerns(r, id) && r.Header.Revision < revision {
				return nil
			}
		}
		for id := range f.sent {
			if f.concerns(r, id) {
				f.sent[id] = r.Header.Revision
			}
		}
	}
	return f.Watch_WatchServer.Send(r)
}

// isLost tells whether a watch has ended that the client wants, and can resume.
func (f *forward) isLost(r *pb.WatchResponse) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.canceled[r.WatchId]
	delete(f.canceled, r.WatchId)
	return !asked && r.CompactRevision == 0 && r.WatchId != clientv3.InvalidWatchID
}

// concerns tells whether a response is for a watch.
func (*forward) concerns(r *pb.WatchResponse, id int64) bool {
	return r.WatchId == id || r.WatchId == clientv3.InvalidWatchID
}
