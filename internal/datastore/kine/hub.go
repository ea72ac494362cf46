package kine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/sirupsen/logrus"
)

// watchBuffer is how many batches of events a watch may lag behind before it is
// ended, so that its client begins anew; kine's own number.
const watchBuffer = 100

// hub hands every event to the watches it is for. It does so in one step: once
// it has seen a revision, every watch has all of its events up to that one.
//
// kine's own (pkg/logstructured) moves events through three goroutines per
// watch and cannot tell when they have arrived: a watch may be told of progress
// to a revision before it gets the events up to there, and each request for
// progress waits for the next tick of a second. The API server makes such a
// request before it answers a consistent list from its cache.
type hub struct {
	log *sqllog.SQLLog
	// release ends the subscription to the log.
	release context.CancelFunc

	mu sync.Mutex
	// moved is signalled when one of the next two changes.
	moved    sync.Cond
	revision int64
	ended    bool
	// watches is nil while the hub is not connected to the log.
	watches map[*watch]bool
}

// watch is one watch for the keys from key to end, or for key alone if end is
// empty, or for all if both are. It is guarded by the hub's lock.
type watch struct {
	key, end string
	events   chan []*server.Event
	// While the past is being read, what happens meanwhile is put here.
	reading   bool
	meanwhile []*server.Event
	// after is the last revision read from the past.
	after int64
}

func newHub(log *sqllog.SQLLog) *hub {
	h := &hub{log: log}
	h.moved.L = &h.mu
	return h
}

// connect subscribes to the log, whose polling begins with the first to do so.
func (h *hub) connect(ctx context.Context) (<-chan server.Events, error) {
	// The channel is closed by the end of the polling, not by that of ctx: the
	// database may be closed then.
	follow, release := context.WithCancel(context.WithoutCancel(ctx))
	h.release = release
	events := h.log.Watch(follow, "", "")
	if events == nil {
		release()
		return nil, errors.New("follow the log of changes: the database cannot be read")
	}
	revision, err := h.log.CurrentRevision(ctx)
	if err != nil {
		release()
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.revision = max(h.revision, revision)
	h.moved.Broadcast()
	h.watches = map[*watch]bool{}
	return events, nil
}

// run hands out events, as connect returned them, until ctx is cancelled.
func (h *hub) run(ctx context.Context, events <-chan server.Events) {
	for {
		for batch := range events {
			h.deliver(batch)
		}
		h.release()
		h.disconnect(ctx.Err() != nil)
		if ctx.Err() != nil {
			return
		}
		// The log drops those who are slow to follow.
		logrus.WithField("component", name).Warn("this host is too slow to follow the changes: every watch begins anew")
		var err error
		for events, err = h.connect(ctx); err != nil && ctx.Err() == nil; events, err = h.connect(ctx) {
			sleep(ctx, time.Second)
		}
	}
}

// deliver hands batch, which is in order, to the watches it is for.
func (h *hub) deliver(batch []*server.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		matching := w.filter(batch)
		if len(matching) == 0 {
			continue
		}
		if w.reading {
			w.meanwhile = append(w.meanwhile, matching...)
			continue
		}
		select {
		case w.events <- matching:
		default:
			h.drop(w)
		}
	}
	h.revision = max(h.revision, batch[len(batch)-1].KV.ModRevision)
	h.moved.Broadcast()
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

// drop ends w. The lock is held.
func (h *hub) drop(w *watch) {
	if h.watches[w] {
		delete(h.watches, w)
		close(w.events)
	}
}

// disconnect ends every watch, and, if it is for good, every wait.
func (h *hub) disconnect(forGood bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		h.drop(w)
	}
	h.watches = nil
	h.ended = h.ended || forGood
	h.moved.Broadcast()
}

// Watch implements that of server.Backend, with kine's meaning of revision: the
// first one wanted, or 0 for all there are.
func (h *hub) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	w := &watch{key: key, end: end, events: make(chan []*server.Event, watchBuffer), reading: true}
	failed := make(chan error, 1)
	result := server.WatchResult{Events: w.events, Errorc: failed}

	h.mu.Lock()
	if h.watches == nil {
		h.mu.Unlock()
		failed <- server.ErrGRPCUnhealthy
		close(w.events)
		return result
	}
	h.watches[w] = true
	h.mu.Unlock()
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.drop(w)
	})

	if revision > 1 {
		revision--
	}
	current, past, err := h.log.After(ctx, key, end, revision, 0)

	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == server.ErrCompacted:
		result.CurrentRevision = current
		result.CompactRevision, _ = h.log.CompactRevision(ctx)
		h.drop(w)
	case err != nil:
		failed <- server.ErrGRPCUnhealthy
		h.drop(w)
	case h.watches[w]:
		w.after = revision
		if len(past) > 0 {
			w.after = current
			w.events <- past
		}
		if matching := w.filter(w.meanwhile); len(matching) > 0 {
			w.events <- matching
		}
		w.reading, w.meanwhile = false, nil
	}
	return result
}

// WaitForSyncTo implements that of server.Backend: it returns when every watch
// has its events up to revision.
func (h *hub) WaitForSyncTo(revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.revision < revision && !h.ended {
		h.moved.Wait()
	}
}
