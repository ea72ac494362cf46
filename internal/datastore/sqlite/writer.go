package sqlite

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

const (
	// maxBatch is how many changes may share a transaction.
	maxBatch = 500
	// maxPending is how many deferred changes may wait to be written, and
	// deferral how long the first of them may wait. A deletion may wait for
	// deferralOfDeletion: its key would expire by itself.
	maxPending         = 256
	deferral           = 5 * time.Second
	deferralOfDeletion = time.Minute
)

// change is a request to the writer.
type change struct {
	kind  kind
	key   string
	value []byte
	// lease is the lifetime of the key in seconds, or 0 for no end.
	lease int64
	// revision is the revision that an update or a deletion expects; 0 lets a
	// deletion delete any. For a sweep it is the revision up to which to sweep.
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
	// kindFlush writes the deferred versions.
	kindFlush
	// kindShrink is answered at once, and makes the file smaller afterwards.
	kindShrink
)

// outcome is the answer to a change. If ok is false, a condition did not hold,
// and kv is the present value. For a sweep, ok says that there is no more to do.
type outcome struct {
	revision int64
	kv       *server.KeyValue
	ok       bool
	err      error
}

// writer alone changes the database and hands out revisions. It makes all waiting
// changes in one transaction: one commit, one sync of the disk.
type writer struct {
	log    *log
	state  *state
	faults *faults
	meter  *measure.Meter
	queue  chan *change
	// ended is closed when the writer takes no more changes from queue.
	ended chan struct{}

	// last is the last revision that was handed out. Revisions of a failed
	// transaction are not used again, because the log may have them despite the
	// failed commit.
	last int64
	// pending are the deferred versions that are not in the database, in order.
	pending []version
	// flushAt is when they must be written.
	flushAt time.Time
	leases  leases
}

// do hands c to the writer and waits for the outcome. If ctx ends first, c may
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

// run writes until ctx is done. Then it writes what is in memory.
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

// waiting returns c and all changes that wait after it.
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

// next returns how long the writer has nothing to do.
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

// write makes the changes of batch in one transaction, publishes them and
// answers. With flush it writes the deferred versions too. If the database
// refuses, the changes that depend on it get the error, and the others are tried
// again.
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

// shrink rewrites the database without its free space. Changes wait meanwhile, and
// SQLite holds the used part in memory, so shrink is not called for a large
// database (shrinkMost).
func (w *writer) shrink() {
	began := time.Now()
	err := w.log.exec(`VACUUM`)
	if err == nil {
		// VACUUM writes into the write-ahead log. The checkpoint does not wait for
		// readers. If there are any, the file gets smaller with a later
		// checkpoint.
		err = w.log.exec(`PRAGMA wal_checkpoint(PASSIVE)`)
	}
	switch {
	case err == nil:
		w.faults.log.Infof("Gave back the free space of %s in %s", w.faults.file, time.Since(began).Round(time.Millisecond))
	case errors.Is(explain(w.faults.file, err), errFull):
		// VACUUM needs some space first. Writes continue as long as there is any.
		w.faults.log.Debugf("Cannot make %s smaller: %v", w.faults.file, err)
	default:
		_ = w.faults.note(err)
	}
}

// publish makes the changes of t visible, and answers the requests.
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
		o.revision = cmp.Or(o.revision, current)
		c.answer(o)
	}
}

// deferWrite queues v to be written later.
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

// close writes everything in memory with the revisions that clients saw, so that
// the next start continues as if there had been no stop.
func (w *writer) close() {
	if w.faults.err() != nil {
		return
	}
	w.state.mu.RLock()
	last := w.state.revision
	versions := append(w.pending, w.state.memory.volatile()...)
	w.state.mu.RUnlock()
	if err := w.log.finish(versions, last); err != nil {
		_ = w.faults.note(err) // logs the error; the next start is like one after a crash
	}
}
