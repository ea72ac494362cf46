package sqldb

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/watches"
)

const (
	// pollInterval is the longest delay until a server learns of another server's
	// change.
	pollInterval = time.Second
	// pollBatch limits how many changes are read at once.
	pollBatch = 500
	// gapPause is how long the poller waits for a missing revision.
	gapPause = 2 * time.Millisecond
	// beginBefore is how many revisions before the last one polling begins. A
	// change that is still being written is assumed not to be older.
	beginBefore = 200
	// watchBuffer is how many batches of events a watch may lag behind. One that
	// lags more is ended, so that its client begins anew.
	watchBuffer = 1000
)

// hub hands changes to the watches, in order and without a gap.
type hub struct {
	// more wakes the poller when there is something new.
	more loop.Changes

	mu sync.Mutex
	// moved is closed and replaced whenever last increases.
	moved chan struct{}
	// last is the revision up to which every watch has its events.
	last    int64
	watches watches.Set
	ended   bool
}

func newHub() *hub {
	return &hub{more: loop.NewChanges(), moved: make(chan struct{}), watches: watches.New(watchBuffer)}
}

// start sets the revision after which changes are handed out.
func (h *hub) start(last int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = last
}

// tell wakes the poller if it has not seen revision.
func (h *hub) tell(revision int64) {
	if revision <= h.seen() {
		return
	}
	h.more.Notify()
}

// seen returns the revision up to which every watch has its events.
func (h *hub) seen() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// wait returns when every watch has its events up to revision.
func (h *hub) wait(ctx context.Context, revision int64) error {
	for {
		h.mu.Lock()
		last, moved, ended := h.last, h.moved, h.ended
		h.mu.Unlock()
		if last >= revision {
			return nil
		}
		if ended {
			return server.ErrGRPCUnhealthy
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish hands events to their watches, and records that every watch has its
// events up to last.
func (h *hub) publish(events []*server.Event, last int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches.Deliver(events)
	h.last = last
	close(h.moved)
	h.moved = make(chan struct{})
}

// leave ends w.
func (h *hub) leave(w *watches.Watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches.Leave(w)
}

// dropAll ends all watches. The hub then continues at last, or ends if ended is
// true.
func (h *hub) dropAll(last int64, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches.LeaveAll()
	h.last, h.ended = last, ended
	close(h.moved)
	h.moved = make(chan struct{})
}

// WaitForSyncTo implements direct.Backend.
func (b *Backend) WaitForSyncTo(revision int64) {
	_ = b.hub.wait(context.Background(), revision)
}

// Watch implements server.Backend.
func (b *Backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	return b.WatchRange(ctx, "", "", revision)
}

// WatchRange implements direct.Backend. revision is the first revision wanted, or 0
// for future events only, as with etcd. A watch that does not keep up is ended.
func (b *Backend) WatchRange(ctx context.Context, key, end string, revision int64) server.WatchResult {
	h := b.hub
	h.mu.Lock()
	last, ended := h.last, h.ended
	w := h.watches.Join(key, end, revision, last)
	reading := w.Reading
	h.mu.Unlock()
	failed := make(chan error, 1)
	result := server.WatchResult{CurrentRevision: last, Eventc: w.Events, Errorc: failed}
	if ended {
		failed <- server.ErrGRPCUnhealthy
		h.leave(w)
		return result
	}
	context.AfterFunc(ctx, func() { h.leave(w) })
	if !reading {
		return result
	}
	past, compacted, err := b.past(ctx, w, last)
	switch {
	case err == nil && w.After < compacted:
		result.CompactRevision = compacted
		h.leave(w)
	case err != nil:
		failed <- b.faults.note(err)
		h.leave(w)
	default:
		h.mu.Lock()
		h.watches.CatchUp(w, past)
		h.mu.Unlock()
	}
	return result
}

// past returns the events that w has missed up to last, and the revision up to
// which the table is compacted.
func (b *Backend) past(ctx context.Context, w *watches.Watch, last int64) ([]*server.Event, int64, error) {
	statement, args := "SELECT "+columns+", value, old_value FROM kine WHERE id > ? AND id <= ?", []any{w.After, last}
	switch {
	case w.End != "":
		condition, names := within(w.Key, w.End)
		statement, args = statement+" AND "+condition, append(args, names...)
	case w.Key != "":
		statement, args = statement+" AND name = ?", append(args, w.Key)
	}
	events, err := b.events(ctx, statement+" ORDER BY id", args, true, true)
	if err != nil {
		return nil, 0, err
	}
	compacted, err := b.number(ctx, compacted)
	return slices.DeleteFunc(events, isFill), compacted, err
}

func isFill(e *server.Event) bool { return strings.HasPrefix(e.KV.Key, fillPrefix) }

// begin returns the revision from which to poll.
func (b *Backend) begin(ctx context.Context) (int64, error) {
	now, err := b.number(ctx, head)
	if err != nil {
		return 0, err
	}
	compacted, err := b.number(ctx, compacted)
	return max(now-beginBefore, compacted, 0), err
}

// poll reads new changes until ctx ends.
func (b *Backend) poll(ctx context.Context) {
	defer func() { b.hub.dropAll(b.hub.seen(), true) }()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var missing int64
	for {
		again, err := b.pollOnce(ctx, &missing)
		if err != nil {
			_ = b.faults.note(err)
		}
		var pause <-chan time.Time
		switch {
		case err != nil:
			// Wait for the next tick and ignore wake-ups: else each request would
			// cause an attempt.
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				continue
			}
		case again:
			pause = time.After(gapPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause:
		case <-tick.C:
		case <-b.hub.more:
		}
	}
}

// pollOnce hands out new changes, up to the first missing revision. Its
// transaction may not have been committed yet, or may never be. *missing
// remembers this revision. If it is still missing at the next call, pollOnce
// fills it with a row of its own, so that its writer has to take another one.
// again says that there is more to do.
func (b *Backend) pollOnce(ctx context.Context, missing *int64) (again bool, err error) {
	last := b.hub.seen()
	statement := "SELECT " + columns + ", value, old_value FROM kine WHERE id > ? ORDER BY id LIMIT " + fmt.Sprint(pollBatch)
	events, err := b.events(ctx, statement, []any{last}, true, true)
	if err != nil || len(events) == 0 {
		return false, err
	}
	whole := 0
	for whole < len(events) && events[whole].KV.ModRevision == last+int64(whole)+1 {
		whole++
	}
	if whole > 0 {
		*missing = 0
		last += int64(whole)
		b.hub.publish(slices.DeleteFunc(slices.Clone(events[:whole]), isFill), last)
	}
	if whole == len(events) {
		if whole == pollBatch {
			b.hub.tell(last + 1)
		}
		return false, nil
	}
	if *missing != last+1 {
		*missing = last + 1
		return true, nil
	}
	return true, b.close(ctx, last, events[whole].KV.ModRevision)
}

// close fills the revisions between last and next, so that no change can appear
// there any more.
func (b *Backend) close(ctx context.Context, last, next int64) error {
	compacted, err := b.number(ctx, compacted)
	if err != nil {
		return err
	}
	if compacted > last {
		// This server did not see the database for a long time, and the changes
		// of others meanwhile are compacted. So clients that watch must list
		// again.
		b.hub.dropAll(compacted, false)
		return nil
	}
	for id := last + 1; id < next; id++ {
		_, err := b.db.ExecContext(ctx, b.dialect.bind(fill), id, fmt.Sprint(fillPrefix, id))
		if err != nil && !b.dialect.again(err) {
			return err
		}
	}
	return nil
}
