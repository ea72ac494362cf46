// Package watches hands the changes of a datastore, in order, to those who watch
// it. The datastores that are not etcd keep a Set each; it has no lock of its own,
// because what is handed out must agree with what they know as the last revision.
package watches

import (
	"slices"

	"github.com/k3s-io/kine/pkg/server"
)

// Set are the watches of one datastore, whose lock guards the set and all that is
// in it.
type Set struct {
	buffer int
	all    map[*Watch]bool
}

// New returns a set whose watches may lag behind by so many batches of events. One
// that lags more is ended, so that its client begins anew.
func New(buffer int) Set { return Set{buffer, map[*Watch]bool{}} }

// Watch is for the keys from Key to End, or for Key alone if End is empty, or for
// all if both are.
type Watch struct {
	Key, End string
	// After is the last revision that is not wanted.
	After int64
	// Events is closed when the watch ends.
	Events chan []*server.Event
	// Reading says that the past is being read. What happens meanwhile is put
	// into meanwhile.
	Reading   bool
	meanwhile [][]*server.Event
}

// Join adds a watch. revision is the first one wanted, or 0 for those to come, as
// with etcd; last is the last one that was delivered. If the watch wants what was
// before, it is reading, until CatchUp or Leave.
func (s Set) Join(key, end string, revision, last int64) *Watch {
	w := &Watch{Key: key, End: end, After: revision - 1, Events: make(chan []*server.Event, s.buffer)}
	if revision == 0 {
		w.After = last
	}
	w.Reading = w.After < last
	s.all[w] = true
	return w
}

// CatchUp hands w the past, and then what has happened meanwhile.
func (s Set) CatchUp(w *Watch, past []*server.Event) {
	if !s.all[w] {
		return
	}
	if len(past) > 0 {
		w.Events <- past
	}
	for _, batch := range w.meanwhile {
		w.Events <- batch
	}
	w.Reading, w.meanwhile = false, nil
}

// Leave ends w.
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

// Deliver hands batch, which is in order, to the watches it is for.
func (s Set) Deliver(batch []*server.Event) {
	for w := range s.all {
		matching := w.filter(batch)
		switch {
		case len(matching) == 0:
		case len(w.Events)+len(w.meanwhile) >= s.buffer-1: // one is for the past
			s.Leave(w)
		case w.Reading:
			w.meanwhile = append(w.meanwhile, matching)
		default:
			w.Events <- matching
		}
	}
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
