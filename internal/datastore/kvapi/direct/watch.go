package direct

import (
	"context"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// watcher is a clientv3.Watcher. Its watches differ from those of etcd's own
// client where the API server does not need the difference: they send no first
// response that says that the watch was created. A watch that may have missed an
// event ends without an error. The API server then begins a new one at the same
// revision.
type watcher struct {
	server *Server
	// ctx is the context of the client.
	ctx context.Context
}

type watch struct {
	watcher *watcher
	// stream identifies the gRPC stream that etcd's own client would have used. A
	// request for progress concerns all watches of one stream.
	stream    string
	responses chan clientv3.WatchResponse
	// progress holds the latest revision that the watch has yet to report, if any.
	progress chan int64
}

// Watch implements clientv3.Watcher.
func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...) // the only way to read options
	this := &watch{watcher: w, stream: stream(ctx), responses: make(chan clientv3.WatchResponse), progress: make(chan int64, 1)}
	if !w.server.begin() {
		close(this.responses)
		return this.responses
	}
	w.server.mu.Lock()
	w.server.watches[this] = true
	w.server.mu.Unlock()
	go func() {
		defer w.server.running.Done()
		defer close(this.responses)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(w.ctx, cancel)()
		w.follow(ctx, this, string(op.KeyBytes()), string(op.RangeBytes()), op.Rev())
		w.server.mu.Lock()
		defer w.server.mu.Unlock()
		delete(w.server.watches, this)
	}()
	return this.responses
}

// follow hands the events of the keys from key to end to the watch, or of key
// alone if end is empty, until the watch or ctx ends. Events that the client is
// slow to take wait here, because the backend would end the watch.
func (w *watcher) follow(ctx context.Context, this *watch, key, end string, revision int64) {
	result, err := call(ctx, w.server, revision, func(ctx context.Context, revision int64) (server.WatchResult, error) {
		return w.server.backend.WatchRange(ctx, key, end, revision), nil
	})
	if err != nil {
		return
	}
	var waiting []clientv3.WatchResponse
	events := result.Eventc
	if result.CompactRevision != 0 {
		events = nil
		waiting = append(waiting, clientv3.WatchResponse{
			Header: &pb.ResponseHeader{Revision: result.CurrentRevision}, Canceled: true, CompactRevision: result.CompactRevision,
		})
	}
	var last int64
	receive := func(batch server.EventBatch, ok bool) {
		if !ok {
			events = nil
		} else if len(batch.Events) > 0 {
			last = batch.CurrentRev
			waiting = append(waiting, clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: last}, Events: convert(batch.Events)})
		}
	}
	for events != nil || len(waiting) > 0 {
		var responses chan<- clientv3.WatchResponse
		var next clientv3.WatchResponse
		if len(waiting) > 0 {
			responses, next = this.responses, waiting[0]
		}
		select {
		case <-ctx.Done():
			return
		case responses <- next:
			waiting = waiting[1:]
		case batch, ok := <-events:
			receive(batch, ok)
		case revision := <-this.progress:
			// Every event up to revision is in the channel, or has been.
			for more := true; more && events != nil; {
				select {
				case batch, ok := <-events:
					receive(batch, ok)
				default:
					more = false
				}
			}
			if events != nil && revision >= last {
				last = revision
				waiting = append(waiting, clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: revision}})
			}
		}
	}
}

// RequestProgress implements clientv3.Watcher. Each watch of ctx's stream gets a
// response with the current revision, after all its events up to that revision.
func (w *watcher) RequestProgress(ctx context.Context) error {
	stream := stream(ctx)
	return w.server.tell(ctx, func(this *watch) bool { return this.watcher == w && this.stream == stream })
}

// tell reports the current revision to those watches that to selects.
func (s *Server) tell(ctx context.Context, to func(*watch) bool) error {
	revision, err := call(ctx, s, struct{}{}, func(ctx context.Context, _ struct{}) (int64, error) {
		return s.backend.CurrentRevision(ctx)
	})
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	s.backend.WaitForSyncTo(revision)
	s.mu.Lock()
	defer s.mu.Unlock()
	for this := range s.watches {
		if !to(this) {
			continue
		}
		latest := revision
		select {
		case earlier := <-this.progress:
			latest = max(latest, earlier)
		default:
		}
		this.progress <- latest
	}
	return nil
}

// tellProgress reports the current revision to all watches at regular intervals,
// until the server is closed.
func (s *Server) tellProgress() {
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			// A failure is ignored: the next tick tries again.
			_ = s.tell(s.ctx, func(*watch) bool { return true })
		}
	}
}

// Close implements clientv3.Watcher. The watches end with the client's context.
func (w *watcher) Close() error { return nil }
