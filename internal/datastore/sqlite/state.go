package sqlite

import (
	"sync"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/shelf"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/watches"
)

// state is what the writer, readers and watches share. It changes in one step:
// once a revision is the current one, every reader finds its change, and every
// watch has its event.
type state struct {
	mu sync.RWMutex
	// moved is signalled when revision or ended changes.
	moved sync.Cond
	// revision is the current revision.
	revision int64
	// compacted is the revision below which nothing can be read.
	compacted int64
	memory    memory
	shelf     shelf.Shelf[place]
	watches   watches.Set
	// ended is true if no revision will follow.
	ended bool
}

func newState() *state {
	s := &state{memory: memory{}, watches: watches.New(watchBuffer)}
	s.moved.L = &s.mu
	return s
}

// publish makes the changes of a transaction the current state. written are
// versions that are now in the database, changes are the new ones in order.
// revision is that of the last change.
func (s *state) publish(written, changes []version, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range written {
		s.memory.written(v)
	}
	events := make([]*server.Event, len(changes))
	for i, v := range changes {
		events[i] = v.Event
		if v.durability == volatile {
			v = onShelf(&s.shelf, v)
		}
		s.memory.add(v)
	}
	if len(events) > 0 {
		s.watches.Deliver(events)
		s.revision = revision
		s.moved.Broadcast()
	}
}

// last returns the version of key that memory has at the current revision.
func (s *state) last(key string) (version, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.memory.at(key, s.revision)
}

// current returns the current revision.
func (s *state) current() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.revision
}

// compact moves the revision below which nothing can be read up to the given one,
// and returns the current revision.
func (s *state) compact(revision int64) (current int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case revision > s.revision:
		return s.revision, server.ErrFutureRev
	case revision <= s.compacted:
		return s.revision, server.ErrCompacted
	}
	s.compacted = revision
	s.memory.compact(revision)
	return s.revision, nil
}

// check returns an error if revision cannot be read. 0 stands for the current
// one.
func (s *state) check(revision int64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case revision > s.revision:
		return server.ErrFutureRev
	case revision > 0 && revision < s.compacted:
		return server.ErrCompacted
	}
	return nil
}

// end ends every watch and every wait.
func (s *state) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches.LeaveAll()
	s.ended = true
	s.moved.Broadcast()
}
