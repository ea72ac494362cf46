package kine

import (
	"context"
	"slices"

	"github.com/k3s-io/kine/pkg/server"
)

// watchBuffer is how many batches of events a watch may lag behind before it is
// ended, so that its client begins anew; kine's own number.
const watchBuffer = 100

// watch is one watch for the keys from key to end, or for key alone if end is
// empty, or for all if both are. It is guarded by the state's lock.
type watch struct {
	key, end string
	// after is the last revision that is not wanted.
	after  int64
	events chan []*server.Event
	// While the past is being read, what happens meanwhile is put here.
	reading   bool
	meanwhile [][]*server.Event
}

// Watch implements server.Backend. revision is the first one wanted, or 0 for
// those to come, as with etcd. A watch that does not keep up is ended.
func (b *Backend) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	w := &watch{key: key, end: end, after: revision - 1, events: make(chan []*server.Event, watchBuffer)}
	failed := make(chan error, 1)
	result := server.WatchResult{Events: w.events, Errorc: failed}
	s := b.state
	current, missed, ended := s.join(w, revision)
	if ended {
		failed <- server.ErrGRPCUnhealthy
		return result
	}
	context.AfterFunc(ctx, func() { s.leave(w) })
	if w.reading {
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
			s.catchUp(w, past)
		}
	}
	return result
}

// join adds w to those that get events, and returns the current revision. If
// that is beyond the first one wanted, w is reading, and what it missed and
// memory has is returned too.
func (s *state) join(w *watch, revision int64) (current int64, missed []*server.Event, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		close(w.events)
		return s.revision, nil, true
	}
	s.watches[w] = true
	if revision == 0 {
		w.after = s.revision
	}
	if w.reading = w.after < s.revision; w.reading {
		missed = s.memory.events(w.key, w.end, w.after, s.revision)
	}
	return s.revision, missed, false
}

// catchUp hands w the past, and then what has happened meanwhile.
func (s *state) catchUp(w *watch, past []*server.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watches[w] {
		return
	}
	if len(past) > 0 {
		w.events <- past
	}
	for _, batch := range w.meanwhile {
		w.events <- batch
	}
	w.reading, w.meanwhile = false, nil
}

// leave ends w.
func (s *state) leave(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(w)
}

// drop ends w. The lock is held.
func (s *state) drop(w *watch) {
	if s.watches[w] {
		delete(s.watches, w)
		close(w.events)
	}
}

// deliver hands batch, which is in order, to the watches it is for. The lock
// is held.
func (s *state) deliver(batch []*server.Event) {
	for w := range s.watches {
		matching := w.filter(batch)
		switch {
		case len(matching) == 0:
		case len(w.events)+len(w.meanwhile) >= watchBuffer-1: // one is for the past
			s.drop(w)
		case w.reading:
			w.meanwhile = append(w.meanwhile, matching)
		default:
			w.events <- matching
		}
	}
}

// filter returns the events that are for w.
func (w *watch) filter(events []*server.Event) []*server.Event {
	matches := func(e *server.Event) bool { return e.KV.ModRevision > w.after && e.InRange(w.key, w.end) }
	first := slices.IndexFunc(events, matches)
	if first < 0 {
		return nil
	}
	if len(events) == 1 {
		return events
	}
	matching := []*server.Event{events[first]}
	for _, e := range events[first+1:] {
		if matches(e) {
			matching = append(matching, e)
		}
	}
	return matching
}

// WaitForSyncTo implements server.Backend: it returns when every watch has its
// events up to revision.
func (b *Backend) WaitForSyncTo(revision int64) {
	s := b.state
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.revision < revision && !s.ended {
		s.moved.Wait()
	}
}
