package etcdapi

import (
	"slices"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	f := &forward{&stream, map[int64]int64{}}
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
	canceled := func(r *pb.WatchResponse) { r.Canceled = true }
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
