package sqlite

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/watches"
)

// watchBuffer is how many batches of events a watch may lag behind. One that lags
// more is ended, so that its client begins anew. It is kine's own number.
const watchBuffer = 100

// Watch implements server.Backend.
func (b *Backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	return b.WatchRange(ctx, "", "", revision)
}

// WatchRange implements direct.Backend. revision is the first revision wanted, or 0
// for future events only, as with etcd. A watch that does not keep up is ended.
func (b *Backend) WatchRange(ctx context.Context, key, end string, revision int64) server.WatchResult {
	s := b.state
	w, current, missed, ended := s.join(key, end, revision)
	failed := make(chan error, 1)
	result := server.WatchResult{CurrentRevision: current, Eventc: w.Events, Errorc: failed}
	if ended {
		failed <- server.ErrGRPCUnhealthy
		return result
	}
	context.AfterFunc(ctx, func() { s.leave(w) })
	if w.Reading {
		past, err := b.events(ctx, w, current, missed)
		switch {
		case err == server.ErrCompacted:
			s.mu.RLock()
			result.CurrentRevision, result.CompactRevision = s.revision, s.compacted
			s.mu.RUnlock()
			s.leave(w)
		case err != nil:
			failed <- err
			s.leave(w)
		default:
			s.mu.Lock()
			s.watches.CatchUp(w, past)
			s.mu.Unlock()
		}
	}
	return result
}

// join adds a watch and returns the current revision. If the watch is reading,
// missed are the past events that memory has. ended is true if the backend has
// ended.
func (s *state) join(key, end string, revision int64) (w *watches.Watch, current int64, missed []*server.Event, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w = s.watches.Join(key, end, revision, s.revision)
	if s.ended {
		s.watches.Leave(w)
	} else if w.Reading {
		missed = s.memory.events(w.Key, w.End, w.After, s.revision)
	}
	return w, s.revision, missed, s.ended
}

// leave ends w.
func (s *state) leave(w *watches.Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches.Leave(w)
}

// WaitForSyncTo implements direct.Backend. It returns when every watch has its
// events up to revision.
func (b *Backend) WaitForSyncTo(revision int64) {
	s := b.state
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.revision < revision && !s.ended {
		s.moved.Wait()
	}
}
