package etcdapi

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Watch implements pb.WatchServer. kine's server reads the current revision and reports it as progress a
// little later. Meanwhile it may send later events (pkg/server/watch.go). A client would take the
// report for a step back.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/server/watch.go server.Send watcher.ProgressAll watcher.ProgressIfSynced
func (k *keys) Watch(stream pb.Watch_WatchServer) error {
	return k.KVServerBridge.Watch(&forward{stream, map[int64]int64{}})
}

// forward is a stream of watches whose revisions never go back. kine's server calls Send under a lock.
type forward struct {
	pb.Watch_WatchServer
	// sent has the last revision that each watch was told.
	sent map[int64]int64
}

// Send sends a response, except a report of progress that comes too late. Clients that need one ask
// again.
func (f *forward) Send(r *pb.WatchResponse) error {
	switch {
	case r.Canceled:
		delete(f.sent, r.WatchId)
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

// concerns tells whether a response is for a watch.
func (*forward) concerns(r *pb.WatchResponse, id int64) bool {
	return r.WatchId == id || r.WatchId == clientv3.InvalidWatchID
}
