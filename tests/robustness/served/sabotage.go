package served

import (
	"context"
	"log"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// Faults are faults that a saboteur makes, and the words by which their validators object. A check
// that does not notice its fault shows nothing.
var Faults = map[string]string{
	"lost-write":     "linearization",
	"stale-read":     "linearization",
	"wrong-history":  "and /registry/pods/",
	"reordered":      "broke Ordered",
	"repeated":       "broke Unique",
	"left-out":       "broke Reliable",
	"begun-late":     "broke Resumable",
	"early-bookmark": "broke Bookmarkable",
	"wrong-previous": "prevValue",
	"not-created":    "IsCreate",
	"foreign":        "got an event of",
}

// warmUp is how many opportunities a saboteur lets pass, so that there is a history to contradict.
const warmUp = 40

// mostFaults is how often a saboteur makes its fault. Once would not do: the watch that gets it may be about to end.
const mostFaults = 3

// saboteur makes one kind of fault. Without a fault it does nothing.
type saboteur struct {
	fault string
	mu    sync.Mutex
	// passed counts the opportunities, and made the faults.
	passed, made int
	// old is a list from before.
	old *pb.RangeResponse
}

func newSaboteur(fault string) *saboteur { return &saboteur{fault: fault} }

// strikes tells whether the fault is to be made now. It is if it is the one of that name, the
// opportunity fits, and there have not been enough.
func (s *saboteur) strikes(fault string, fits bool) bool {
	if s.fault != fault {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed++
	if !fits || s.made >= mostFaults || s.passed < warmUp {
		return false
	}
	s.made++
	log.Printf("sabotage: %s", fault)
	return true
}

// write answers a write that it does not make, or returns nil. The revision of the answer is that of
// a change of another key.
func (s *saboteur) write(ctx context.Context, kv pb.KVClient, r *pb.TxnRequest) *pb.TxnResponse {
	update := len(r.Failure) == 1 && len(r.Success) == 1 && r.Success[0].GetRequestPut() != nil && r.Compare[0].Target == pb.Compare_MOD
	if !s.strikes("lost-write", update) {
		return nil
	}
	other, err := kv.Put(ctx, &pb.PutRequest{Key: []byte("sabotage"), Value: []byte("x")})
	if err != nil {
		return nil
	}
	return &pb.TxnResponse{Header: other.Header, Succeeded: true, Responses: []*pb.ResponseOp{
		{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{Header: other.Header}}},
	}}
}

// read returns the answer to a read.
func (s *saboteur) read(r *pb.RangeRequest, response *pb.RangeResponse) *pb.RangeResponse {
	present := len(r.RangeEnd) > 0 && r.Revision == 0
	if s.strikes("wrong-history", r.Revision > 0 && len(response.Kvs) > 0 && r.Revision < response.Header.Revision) {
		wrong := proto.CloneOf(response)
		wrong.Kvs[0].Value = []byte("wrong")
		return wrong
	}
	if s.fault == "stale-read" && present {
		s.mu.Lock()
		if s.old == nil && len(response.Kvs) > 0 {
			s.old = response
		}
		old := s.old
		s.mu.Unlock()
		if s.strikes("stale-read", old != nil && old.Header.Revision+10 < response.Header.Revision) {
			return old
		}
	}
	return response
}

// watch returns a function for the responses of one watch, which may want previous values. The function returns
// what is to be sent.
func (s *saboteur) watch(previous bool) func(*pb.WatchResponse) []*pb.WatchResponse {
	var held *pb.WatchResponse
	first := true
	return func(response *pb.WatchResponse) []*pb.WatchResponse {
		beginning := first
		first = false
		if len(response.Events) == 0 {
			return []*pb.WatchResponse{response}
		}
		event := response.Events[0]
		if !strings.HasPrefix(string(event.Kv.Key), "/registry/pods/") {
			return []*pb.WatchResponse{response}
		}
		update := event.Type == mvccpb.Event_PUT && event.PrevKv != nil
		changed := proto.CloneOf(response)
		switch {
		case held != nil:
			later := held
			held = nil
			return []*pb.WatchResponse{response, later}
		case s.strikes("reordered", true):
			held = response
			return nil
		case s.strikes("repeated", len(response.Events) == 1): // several at once would break the order
			return []*pb.WatchResponse{response, changed}
		case s.strikes("left-out", !beginning), s.strikes("begun-late", beginning):
			return nil
		case s.strikes("early-bookmark", true):
			return []*pb.WatchResponse{response, {Header: &pb.ResponseHeader{Revision: response.Header.Revision + 20}}}
		case s.strikes("wrong-previous", update && previous):
			changed.Events[0].PrevKv.Value = []byte("wrong")
		case s.strikes("not-created", update):
			changed.Events[0].Kv.CreateRevision = event.Kv.ModRevision
		case s.strikes("foreign", true):
			changed.Events = append(changed.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{
				Key: []byte("/registry/secrets/a/b"), ModRevision: event.Kv.ModRevision, CreateRevision: event.Kv.ModRevision,
			}})
		}
		return []*pb.WatchResponse{changed}
	}
}
