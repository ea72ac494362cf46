package served

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// front serves etcd's API. It passes requests to the socket of the datastore, and answers watches with
// those of the client in this process, which is the one of the API server.
type front struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	kv       pb.KVClient
	client   func() *kubernetes.Client
	saboteur *saboteur
}

// Range implements pb.KVServer.
func (f *front) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	response, err := f.kv.Range(ctx, r)
	if err == nil {
		response = f.saboteur.read(r, response)
	}
	return response, err
}

// Txn implements pb.KVServer.
func (f *front) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if response := f.saboteur.write(ctx, f.kv, r); response != nil {
		return response, nil
	}
	return f.kv.Txn(ctx, r)
}

// Put implements pb.KVServer.
func (f *front) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return f.kv.Put(ctx, r)
}

// Compact implements pb.KVServer.
func (f *front) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return f.kv.Compact(ctx, r)
}

// stream is one stream of watches.
type stream struct {
	front  *front
	client *kubernetes.Client
	// mu is held to send, and guards cancels.
	mu      sync.Mutex
	server  pb.Watch_WatchServer
	cancels map[int64]context.CancelFunc
	running sync.WaitGroup
}

// Watch implements pb.WatchServer.
func (f *front) Watch(server pb.Watch_WatchServer) error {
	s := &stream{front: f, client: f.client(), server: server, cancels: map[int64]context.CancelFunc{}}
	defer s.client.Close()
	ctx, stop := context.WithCancel(server.Context())
	defer s.running.Wait()
	defer stop()
	for id := int64(1); ; id++ {
		request, err := server.Recv()
		if err != nil {
			return err
		}
		if create := request.GetCreateRequest(); create != nil {
			if err := s.create(ctx, id, create); err != nil {
				return err
			}
		}
		if cancel := request.GetCancelRequest(); cancel != nil {
			s.end(cancel.WatchId, &pb.WatchResponse{})
		}
		if request.GetProgressRequest() != nil {
			if err := s.client.RequestProgress(ctx); err != nil {
				return err
			}
		}
	}
}

// create begins a watch. A watch of the future has to know where the future begins, because etcd's
// client resumes it there.
func (s *stream) create(ctx context.Context, id int64, r *pb.WatchCreateRequest) error {
	now, err := s.front.kv.Range(ctx, &pb.RangeRequest{Key: []byte("now")})
	if err != nil {
		return err
	}
	revision := r.StartRevision
	if revision == 0 {
		revision = now.Header.Revision + 1
	}
	key, end := string(r.Key), string(r.RangeEnd)
	if key == "\x00" && end == "\x00" {
		key, end = "", "" // as kine's server reads it
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancels[id] = cancel
	s.mu.Unlock()
	if err := s.send(&pb.WatchResponse{Header: now.Header, WatchId: id, Created: true}); err != nil {
		return err
	}
	sabotage := s.front.saboteur.watch(r.PrevKv)
	s.running.Go(func() {
		s.follow(ctx, id, sabotage, key, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithPrevKV())
	})
	return nil
}

// follow sends the responses of a watch, after sabotage.
func (s *stream) follow(
	ctx context.Context, id int64, sabotage func(*pb.WatchResponse) []*pb.WatchResponse, key string, options ...clientv3.OpOption,
) {
	for response := range s.client.Watch(ctx, key, options...) {
		if response.Canceled {
			s.end(id, &pb.WatchResponse{Header: response.Header, CompactRevision: response.CompactRevision})
			return
		}
		events := make([]*mvccpb.Event, len(response.Events))
		for i, e := range response.Events {
			events[i] = (*mvccpb.Event)(e)
		}
		for _, answer := range sabotage(&pb.WatchResponse{Header: response.Header, Events: events}) {
			answer.WatchId = id
			if s.send(answer) != nil {
				return
			}
		}
	}
	s.end(id, &pb.WatchResponse{CancelReason: "the watch has ended"})
}

// end ends a watch and says so, if the watch has not ended yet.
func (s *stream) end(id int64, response *pb.WatchResponse) {
	s.mu.Lock()
	cancel := s.cancels[id]
	delete(s.cancels, id)
	s.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	if response.Header == nil {
		response.Header = &pb.ResponseHeader{}
	}
	response.WatchId, response.Canceled = id, true
	_ = s.send(response) // the stream may be what has ended
}

func (s *stream) send(response *pb.WatchResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server.Send(response)
}
