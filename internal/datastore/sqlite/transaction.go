package sqlite

import (
	"context"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// transaction is a batch of changes that happen together. It is planned first,
// which only reads, and then committed if the database has to change.
type transaction struct {
	*writer
	flush bool

	// batch are the changes planned so far, outcomes are their answers, and
	// writes tells which of them change the database.
	batch    []*change
	outcomes []outcome
	writes   []bool
	// changes are the resulting versions. staged has the last one of each key.
	changes []version
	staged  map[string]version
	last    int64
	// sweep is the revision up to which to delete superseded rows, or 0.
	sweep int64
	// shrink is true if the file has to be made smaller afterwards.
	shrink bool

	// reserves is true if the commit has to reserve revisions.
	reserves bool
	// committed is true if the transaction reached the disk. flushed are the
	// pending versions that it wrote.
	committed bool
	flushed   []version
}

// plan decides the outcome of each change of batch.
func (t *transaction) plan(batch []*change) error {
	for _, c := range batch {
		before := len(t.changes)
		o, err := t.decide(c)
		t.batch = append(t.batch, c)
		t.outcomes = append(t.outcomes, o)
		t.writes = append(t.writes, err != nil || c.kind == kindSweep || c.kind == kindFlush ||
			len(t.changes) > before && t.changes[before].durability == durable)
		if err != nil {
			return err
		}
	}
	return nil
}

// decide checks the condition of c and stages the version that c makes.
func (t *transaction) decide(c *change) (outcome, error) {
	switch c.kind {
	case kindSweep:
		t.sweep = max(t.sweep, c.revision)
		return outcome{}, nil
	case kindFlush:
		t.flush = t.flush || len(t.pending) > 0
		return outcome{ok: true}, nil
	case kindShrink:
		t.shrink = true
		return outcome{ok: true}, nil
	}
	current, err := t.current(c.key)
	if err != nil {
		return outcome{}, err
	}
	var kv *server.KeyValue // the present value, or nil
	if current.Event != nil && !current.Delete {
		kv = current.KV
	}
	switch {
	case c.kind == kindCreate && kv != nil:
		return outcome{revision: t.revision(), err: server.ErrKeyExists}, nil
	case c.kind == kindCreate:
	case kv == nil:
		// There is nothing to delete, so a deletion at any revision has
		// succeeded.
		return outcome{revision: t.revision(), ok: c.kind == kindRemove && c.revision == 0}, nil
	case c.revision != kv.ModRevision && (c.kind != kindRemove || c.revision != 0):
		return outcome{revision: t.revision(), kv: kv}, nil
	}
	t.last++
	event := &server.Event{
		Create: c.kind == kindCreate,
		Delete: c.kind == kindRemove || c.kind == kindExpire,
		KV:     &server.KeyValue{Key: c.key, ModRevision: t.last},
		PrevKV: kv,
	}
	o := outcome{revision: t.last, kv: event.KV, ok: true}
	switch {
	case event.Delete:
		o.kv = kv
	case event.Create:
		event.KV.Value, event.KV.Lease, event.KV.CreateRevision = c.value, c.lease, t.last
	default:
		event.KV.Value, event.KV.Lease, event.KV.CreateRevision = c.value, c.lease, kv.CreateRevision
	}
	v := version{Event: event, durability: durabilityOf(c, kv)}
	if current.Event != nil {
		v.follows = current.row()
	}
	if v.durability == deferred && len(t.pending) >= 2*maxPending {
		v.durability = durable // the disk is full: deferred versions must not pile up
	}
	t.changes = append(t.changes, v)
	t.staged[c.key] = v
	return o, nil
}

// revision returns the revision that is current after the changes staged so far. The
// answer to a change that is refused has this revision: at a later one, the key may
// have another value.
func (t *transaction) revision() int64 {
	if staged := len(t.changes); staged > 0 {
		return t.changes[staged-1].KV.ModRevision
	}
	return t.state.current()
}

// current returns the last version of key. Its Event is nil if there is none.
func (t *transaction) current(key string) (version, error) {
	if v, ok := t.staged[key]; ok {
		return v, nil
	}
	if v, ok := t.state.last(key); ok {
		return v, nil
	}
	kv, deleted, err := row(context.Background(), t.log.get, key, t.last)
	if kv == nil || err != nil {
		return version{}, err
	}
	return version{Event: &server.Event{KV: kv, Delete: deleted}}, nil
}

// commit writes to the disk what must be there. Deferred versions are written
// too, in the order in which they happened.
func (t *transaction) commit() (err error) {
	// A revision is reserved before any client sees it.
	t.reserves = t.last >= t.log.reserved
	needed := t.reserves || t.flush || t.sweep > 0
	for _, v := range t.changes {
		needed = needed || v.durability == durable
	}
	if !needed {
		return nil
	}
	if err := t.log.begin(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.log.rollback()
		}
	}()
	if err := t.log.reserve(t.last); err != nil {
		return err
	}
	for _, v := range t.pending {
		if err := t.log.insert(v); err != nil {
			return err
		}
	}
	for _, v := range t.changes {
		if v.durability == volatile {
			continue
		}
		if err := t.log.insert(v); err != nil {
			return err
		}
	}
	if t.sweep > 0 {
		if err := t.log.sweep(t.sweep); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := t.log.commit(); err != nil {
		return err
	}
	t.meter.Committed(time.Since(began))
	t.committed, t.flushed = true, t.pending
	for i, c := range t.batch {
		if c.kind == kindSweep {
			t.outcomes[i].ok = t.log.swept >= c.revision
		}
	}
	return nil
}

// refuse answers with err those changes of batch that needed the failed write. It
// returns the others.
func (t *transaction) refuse(batch []*change, err error) (others []*change) {
	for i, c := range batch {
		if t.reserves || i < len(t.writes) && t.writes[i] {
			c.answer(outcome{err: err})
			t.leases.retry(c)
			continue
		}
		others = append(others, c)
	}
	return others
}
