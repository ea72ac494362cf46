// Package watches hands the changes of a datastore, in order, to its watches. Each
// datastore that is not etcd keeps one Set. A Set has no lock of its own, because
// the datastore's lock also guards the last revision, which must agree with what
// was handed out.
package watches

import (
	"slices"

	"github.com/k3s-io/kine/pkg/server"
)

// Set are the watches of one datastore. The datastore's lock guards the set and
// everything in it.
type Set struct {
	buffer int
	all    map[*Watch]bool
}

// New returns a set whose watches may lag behind by up to buffer batches of
// events. A watch that lags more is ended, so that its client begins anew.
func New(buffer int) Set { return Set{buffer, map[*Watch]bool{}} }

// Watch receives the events of the keys from Key to End, of Key alone if End is
// empty, or of all keys if both are empty.
type Watch struct {
	Key, End string
	// After is the last revision that the watch does not want.
	After int64
	// Events is closed when the watch ends.
	Events chan server.EventBatch
	// Reading is true while the past events are being read. New events wait in
	// meanwhile.
	Reading   bool
	meanwhile []server.EventBatch
}

// Join adds a watch. revision is the first one that the watch wants, or 0 for
// future events only, as with etcd. last is the last revision that was delivered.
// If the watch wants earlier events, it is reading until CatchUp or Leave.
func (s Set) Join(key, end string, revision, last int64) *Watch {
	w := &Watch{Key: key, End: end, After: revision - 1, Events: make(chan server.EventBatch, s.buffer)}
	if revision == 0 {
		w.After = last
	}
	w.Reading = w.After < last
	s.all[w] = true
	return w
}

// CatchUp hands w the past events, and then those that arrived meanwhile.
func (s Set) CatchUp(w *Watch, past []*server.Event) {
	if !s.all[w] {
		return
	}
	if len(past) > 0 {
		w.Events <- batchOf(past)
	}
	for _, batch := range w.meanwhile {
		w.Events <- batch
	}
	w.Reading, w.meanwhile = false, nil
}

// Leave ends w. It does nothing if w has already ended.
func (s Set) Leave(w *Watch) {
	if s.all[w] {
		delete(s.all, w)
		close(w.Events)
	}
}

// LeaveAll ends every watch.
func (s Set) LeaveAll() {
	for w := range s.all {
		s.Leave(w)
	}
}

// Deliver hands each watch its events of batch. The events must be in order.
func (s Set) Deliver(batch []*server.Event) {
	for w := range s.all {
		matching := w.filter(batch)
		switch {
		case len(matching) == 0:
		case len(w.Events)+len(w.meanwhile) >= s.buffer-1: // one place is for the past events
			s.Leave(w)
		case w.Reading:
			w.meanwhile = append(w.meanwhile, batchOf(matching))
		default:
			w.Events <- batchOf(matching)
		}
	}
}

// batchOf returns events in the form that watches get. Whoever appends to the events
// gets a copy, because several watches share them.
func batchOf(events []*server.Event) server.EventBatch {
	return server.EventBatch{Events: slices.Clip(events), CurrentRev: events[len(events)-1].KV.ModRevision}
}

// filter returns the events that are for w.
func (w *Watch) filter(events []*server.Event) []*server.Event {
	matches := func(e *server.Event) bool { return e.KV.ModRevision > w.After && e.InRange(w.Key, w.End) }
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
