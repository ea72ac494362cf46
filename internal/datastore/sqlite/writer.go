package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

const (
	// maxBatch is how many changes share a transaction at most.
	maxBatch = 500
	// maxPending is how many deferred changes wait to be written at most, and
	// deferral how long the first of them does. A deletion may wait longer:
	// what it deletes would go by itself.
	maxPending         = 256
	deferral           = 5 * time.Second
	deferralOfDeletion = time.Minute
)

// change is what the writer is asked to do.
type change struct {
	kind  kind
	key   string
	value []byte
	// lease is how many seconds the key lives, 0 for ever.
	lease int64
	// revision is the one that an update or a deletion is for, 0 for a
	// deletion of any; for a sweep the one up to which to go.
	revision int64
	done     chan outcome
}

type kind int

const (
	kindCreate kind = iota
	kindUpdate
	kindRemove
	// kindExpire is the removal of a key whose lease has ended.
	kindExpire
	// kindSweep deletes superseded rows.
	kindSweep
	// kindFlush writes what is deferred.
	kindFlush
	// kindShrink is answered at once, and then makes the file smaller.
	kindShrink
)

// outcome is the answer to a change. If ok is false there was a condition that
// did not hold, and kv is what is there instead. For a sweep, ok says that
// there is no more to do.
type outcome struct {
	revision int64
	kv       *server.KeyValue
	ok       bool
	err      error
}

// writer is the only one to change the database, and the one who hands out
// revisions. It does all changes that wait in one transaction: one commit, one
// sync of the disk.
type writer struct {
	log    *log
	state  *state
	faults *faults
	meter  *measure.Meter
	queue  chan *change
	// ended is closed when nothing is taken from queue any more.
	ended chan struct{}

	// last is the last revision that was handed out. Those of a transaction
	// that failed are not used again: after a failed commit the log may have
	// them all the same.
	last int64
	// pending are the deferred versions that are not in the database, in order.
	pending []version
	// flushAt is when they have to be.
	flushAt time.Time
	leases  leases
}

// do hands c to the writer and waits for the outcome. If ctx ends before, c may
// happen or not.
func (w *writer) do(ctx context.Context, c *change) outcome {
	c.done = make(chan outcome, 1)
	select {
	case w.queue <- c:
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	case <-w.ended:
		return outcome{err: server.ErrGRPCUnhealthy}
	}
	select {
	case o := <-c.done:
		return o
	case <-ctx.Done():
		return outcome{err: ctx.Err()}
	}
}

// run writes until ctx is done, and then what memory has to the database.
func (w *writer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer close(w.ended)
	for ctx.Err() == nil {
		var batch []*change
		select {
		case c := <-w.queue:
			batch = w.waiting(c)
		case <-timer.C:
		case <-ctx.Done():
			continue
		}
		now := time.Now()
		batch = append(batch, w.leases.ended(now)...)
		w.write(batch, len(w.pending) >= maxPending || len(w.pending) > 0 && !now.Before(w.flushAt))
		timer.Reset(w.next())
	}
	w.close()
}

// waiting returns c and all changes that wait behind it.
func (w *writer) waiting(c *change) []*change {
	batch := []*change{c}
	for len(batch) < maxBatch {
		select {
		case c := <-w.queue:
			batch = append(batch, c)
		default:
			return batch
		}
	}
	return batch
}

// next returns how long there is nothing to do.
func (w *writer) next() time.Duration {
	next := time.Hour
	if len(w.pending) > 0 {
		next = time.Until(w.flushAt)
	}
	if end, ok := w.leases.next(); ok {
		next = min(next, time.Until(end))
	}
	return max(next, 0)
}

// write does batch in one transaction, publishes what it has changed and
// answers. With flush it writes the deferred versions too. When the database
// refuses, those who depend on it get the error, and the others are tried again.
func (w *writer) write(batch []*change, flush bool) {
	for len(batch) > 0 || flush {
		t := &transaction{writer: w, last: w.last, staged: map[string]version{}, flush: flush}
		err := t.plan(batch)
		if err == nil {
			w.last = t.last
			err = t.commit()
		}
		if err == nil {
			w.publish(t)
			if t.shrink {
				w.shrink()
			}
			return
		}
		batch = t.refuse(batch, w.faults.note(err))
		if flush {
			flush, w.flushAt = false, time.Now().Add(deferral)
		}
	}
}

// shrink writes the database anew without what is free. Changes wait meanwhile,
// and SQLite has what is left in memory, so it is not for a large one (shrinkMost).
func (w *writer) shrink() {
	began := time.Now()
	err := w.log.exec(`VACUUM`)
	if err == nil {
		// It is done in the write-ahead log. Who reads is not waited for: then the
		// file gets smaller with a later checkpoint.
		err = w.log.exec(`PRAGMA wal_checkpoint(PASSIVE)`)
	}
	switch {
	case err == nil:
		w.faults.log.Infof("Gave back what %s did not use, in %s", w.faults.file, time.Since(began).Round(time.Millisecond))
	case errors.Is(explain(w.faults.file, err), errFull):
		// It needs a little room first. Writes go on where there is any.
		w.faults.log.Debugf("Cannot make %s smaller: %v", w.faults.file, err)
	default:
		_ = w.faults.note(err)
	}
}

// publish makes what t has done visible and answers those who asked for it.
func (w *writer) publish(t *transaction) {
	written := t.flushed
	if t.committed {
		w.faults.wrote()
		w.pending = nil
		for i := range t.changes {
			if t.changes[i].durability == deferred {
				t.changes[i].durability = durable
			}
		}
	}
	for _, v := range t.changes {
		w.leases.note(v.KV, v.Delete)
		if v.durability == deferred {
			w.deferWrite(v)
		}
	}
	w.state.publish(written, t.changes, t.last)
	current := w.state.current()
	for i, c := range t.batch {
		o := t.outcomes[i]
		if o.revision == 0 {
			o.revision = current
		}
		c.answer(o)
	}
}

// deferWrite makes v wait to be written.
func (w *writer) deferWrite(v version) {
	wait := deferral
	if v.Delete {
		wait = deferralOfDeletion
	}
	if at := time.Now().Add(wait); len(w.pending) == 0 || at.Before(w.flushAt) {
		w.flushAt = at
	}
	w.pending = append(w.pending, v)
}

// answer gives c its outcome. Nobody waits for the expiry of a key.
func (c *change) answer(o outcome) {
	if c.done != nil {
		c.done <- o
	}
}

// close writes all that is in memory, so that the next start goes on as if
// nothing had been: every version has the revision it was seen with.
func (w *writer) close() {
	if w.faults.err() != nil {
		return
	}
	w.state.mu.RLock()
	last := w.state.revision
	versions := append(w.pending, w.state.memory.volatile()...)
	w.state.mu.RUnlock()
	if err := w.log.finish(versions, last); err != nil {
		_ = w.faults.note(err) // which logs it; the next start is as after a crash
	}
}
