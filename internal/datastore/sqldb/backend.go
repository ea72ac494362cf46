package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/ttl"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/direct"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/lists"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

const (
	// retainRevisions is how many of the last revisions are never compacted;
	// kine's own number.
	retainRevisions = 1000
	// compactBatch is how many revisions one transaction compacts. compactTimeout
	// limits its duration.
	compactBatch   = 1000
	compactTimeout = 30 * time.Second
	// createRetries limits how often an insert is repeated after another server
	// has filled its id.
	createRetries = 20
)

// compactKey names the row whose prev_revision is the revision up to which the
// table is compacted.
const compactKey = "compact_rev_key"

// Backend is kine's server.Backend over a database to which others write too.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/logstructured/sqllog/sql.go RowsToEvents
//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/generic/tx.go Tx.MustCommit
type Backend struct {
	db      *sql.DB
	dialect *dialect
	faults  *faults
	meter   *measure.Meter
	hub     *hub
	running sync.WaitGroup
}

var _ direct.Backend = (*Backend)(nil)

func newBackend(db *sql.DB, dialect *dialect, faults *faults) *Backend {
	meter := measure.NewMeter(faults.log, fmt.Sprintf("Check the load and the disk of %s, and the network to it", faults.target))
	return &Backend{db: db, dialect: dialect, faults: faults, meter: meter, hub: newHub()}
}

// Start implements server.Backend. Polling and expiry end when ctx does. After an
// error, Start can be called again.
func (b *Backend) Start(ctx context.Context) error {
	if _, err := b.insert(ctx, create, compactKey, 0, 0, []byte{}); err != nil && !b.dialect.taken(err) {
		return b.faults.note(err)
	}
	if _, err := b.create(ctx, server.HealthKey, []byte(server.HealthVal), 0); err != nil && err != server.ErrKeyExists {
		return err
	}
	from, err := b.begin(ctx)
	if err != nil {
		return b.faults.note(err)
	}
	b.hub.start(from)
	b.running.Go(func() { b.poll(ctx) })
	b.running.Go(func() {
		// Run ends when it cannot list, and with its watch.
		wait.UntilWithContext(ctx, func(ctx context.Context) { ttl.Run(ctx, b) }, pollInterval)
	})
	return nil
}

// number runs a statement that returns one number. It returns 0 for NULL.
func (b *Backend) number(ctx context.Context, statement string) (int64, error) {
	var value sql.NullInt64
	err := b.db.QueryRowContext(ctx, statement).Scan(&value)
	return value.Int64, err
}

// CurrentRevision implements server.Backend. It asks the database, because others
// write too.
func (b *Backend) CurrentRevision(ctx context.Context) (int64, error) {
	revision, err := b.number(ctx, head)
	if err != nil {
		return 0, b.faults.note(err)
	}
	b.hub.tell(revision)
	return revision, nil
}

// DbSize implements server.Backend.
func (b *Backend) DbSize(ctx context.Context) (int64, error) {
	size, err := b.number(ctx, b.dialect.size)
	return size, b.faults.note(err)
}

// latest returns the last change of key, or nil if there is none. It ignores
// changes after revision, unless revision is 0.
func (b *Backend) latest(ctx context.Context, key string, revision int64, values bool) (*server.Event, error) {
	statement, args := "SELECT "+valued(values)+" FROM kine WHERE id = (SELECT MAX(id) FROM kine WHERE name = ?", []any{key}
	if revision > 0 {
		statement, args = statement+" AND id <= ?", append(args, revision)
	}
	events, err := b.events(ctx, statement+")", args, values, false)
	if err != nil || len(events) == 0 {
		return nil, err
	}
	return events[0], nil
}

func valued(values bool) string {
	if values {
		return columns + ", value"
	}
	return columns
}

// Get implements server.Backend.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	if strings.Contains(key, "\x00") {
		revision, err := b.CurrentRevision(ctx)
		return revision, nil, err
	}
	at, now, err := b.settle(ctx, revision)
	if err != nil {
		return 0, nil, err
	}
	// Databases find the last change of all faster than the last one up to a revision.
	event, err := b.latest(ctx, key, revision, !keysOnly)
	if err == nil && event != nil && event.KV.ModRevision > at {
		event, err = b.latest(ctx, key, at, !keysOnly)
	}
	if err == nil {
		err = b.check(ctx, revision, now)
	}
	if err != nil {
		return 0, nil, b.faults.note(err)
	}
	if event == nil || event.Delete {
		return now, nil, nil
	}
	return now, event.KV, nil
}

// check returns an error if revision is compacted or in the future. 0 stands for
// the present, which is always readable. It is called after reading, because a
// compaction may happen during the read.
func (b *Backend) check(ctx context.Context, revision, now int64) error {
	if revision == 0 {
		return nil
	}
	if revision > now {
		return server.ErrFutureRev
	}
	compacted, err := b.number(ctx, compacted)
	if err == nil && revision < compacted {
		err = server.ErrCompacted
	}
	return err
}

// within returns a condition for the names from key to end, or for all names if both
// are empty. No name contains a
// zero byte, and PostgreSQL accepts none. So a zero byte at the end of key or end
// is translated: it decides whether that name itself belongs to the range.
func within(key, end string) (condition string, args []any) {
	if key == "" && end == "" {
		end = "\x00"
	}
	condition = "name >= ?"
	if after, ok := strings.CutSuffix(key, "\x00"); ok {
		key, condition = after, "name > ?"
	}
	if last, ok := strings.CutSuffix(end, "\x00"); ok && last != "" {
		return condition + " AND name <= ?", []any{key, last}
	} else if ok {
		return condition, []any{key} // etcd's "all keys from"
	}
	return condition + " AND name < ?", []any{key, end}
}

// settle returns the revision to read at, and the current one. A request for the
// present is read at the last revision, once every watch has its events up to that
// revision. Without waiting, a row that is being written now could appear below that
// revision later. A client that watches from the revision that a list returned would
// then miss it, and one that reads a key would get a revision at which the key has
// another value.
func (b *Backend) settle(ctx context.Context, revision int64) (at, now int64, err error) {
	if now, err = b.CurrentRevision(ctx); err != nil || revision > 0 {
		return revision, now, err
	}
	return now, now, b.hub.wait(ctx, now)
}

// List implements server.Backend.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	at, now, err := b.settle(ctx, revision)
	if err != nil {
		return 0, nil, err
	}
	condition, args := within(key, end)
	statement := "SELECT " + valued(!keysOnly) + " FROM kine JOIN (SELECT MAX(id) AS id FROM kine WHERE " + condition +
		" AND id <= ? GROUP BY name) AS latest USING (id) WHERE deleted = 0 ORDER BY name"
	if limit > 0 {
		statement += fmt.Sprintf(" LIMIT %d", limit)
	}
	events, err := b.events(ctx, statement, append(args, at), !keysOnly, false)
	if err == nil {
		err = b.check(ctx, revision, now)
	}
	if err != nil {
		return now, nil, b.faults.note(err)
	}
	kvs := make([]*server.KeyValue, len(events))
	for i, event := range events {
		kvs[i] = event.KV
	}
	return now, kvs, nil
}

// ListStream implements server.Backend.
func (b *Backend) ListStream(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) server.ListResult {
	return lists.Stream(ctx, b.List, key, end, limit, revision, keysOnly)
}

// Count implements server.Backend.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	at, now, err := b.settle(ctx, revision)
	if err != nil {
		return 0, 0, err
	}
	condition, args := within(key, end)
	var count int64
	err = b.db.QueryRowContext(ctx, b.dialect.bind("SELECT COUNT(*) FROM kine JOIN (SELECT MAX(id) AS id FROM kine WHERE "+condition+
		" AND id <= ? GROUP BY name) AS latest USING (id) WHERE deleted = 0"), append(args, at)...).Scan(&count)
	if err == nil {
		err = b.check(ctx, revision, now)
	}
	return now, count, b.faults.note(err)
}

// insert runs a statement that makes a row. It returns the row's id, or 0 if no
// row was made.
func (b *Backend) insert(ctx context.Context, statement string, args ...any) (id int64, err error) {
	began := time.Now()
	for range createRetries {
		if b.dialect.numbered {
			err = b.db.QueryRowContext(ctx, b.dialect.bind(statement+" RETURNING id"), args...).Scan(&id)
			if err == sql.ErrNoRows {
				return 0, nil
			}
		} else {
			var result sql.Result
			if result, err = b.db.ExecContext(ctx, statement, args...); err == nil {
				id, err = insertedID(result)
			}
		}
		// Another server may have filled the id. A new attempt gets a new id.
		if err == nil || !b.dialect.again(err) {
			break
		}
	}
	if err == nil {
		b.meter.Committed(time.Since(began))
		b.hub.tell(id)
		b.faults.wrote()
	}
	return id, err
}

func insertedID(result sql.Result) (int64, error) {
	if rows, err := result.RowsAffected(); err != nil || rows == 0 {
		return 0, err
	}
	return result.LastInsertId()
}

// Create implements server.Backend.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	for {
		id, err := b.create(ctx, key, value, lease)
		if err != server.ErrKeyExists {
			return id, err
		}
		now, kv, err := b.Get(ctx, key, 0, true)
		if err != nil || kv != nil {
			return now, cmp.Or(err, error(server.ErrKeyExists))
		}
		// Somebody has deleted the key meanwhile, so try again.
	}
}

// create is Create without a revision if the key exists.
func (b *Backend) create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	last, err := b.latest(ctx, key, 0, false)
	if err != nil {
		return 0, b.faults.note(err)
	}
	var previous int64
	if last != nil {
		if !last.Delete {
			return 0, server.ErrKeyExists
		}
		previous = last.KV.ModRevision
	}
	id, err := b.insert(ctx, create, key, previous, lease, value)
	if err != nil && b.dialect.taken(err) {
		return 0, server.ErrKeyExists
	}
	return id, b.faults.note(err)
}

// Update implements server.Backend. If revision is not that of the key's last
// change, it returns the present value.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	id, err := b.insert(ctx, update, lease, value, revision, key)
	if err != nil && !b.dialect.taken(err) {
		return 0, nil, false, b.faults.note(err)
	}
	if err == nil && id != 0 {
		return id, &server.KeyValue{Key: key, Value: value, Lease: lease, ModRevision: id}, true, nil
	}
	now, kv, err := b.Get(ctx, key, 0, false)
	return now, kv, false, err
}

// Delete implements server.Backend. With revision 0 it deletes the key at any
// revision.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	for {
		last, err := b.latest(ctx, key, 0, true)
		if err != nil {
			return 0, nil, false, b.faults.note(err)
		}
		if last != nil && !last.Delete && (revision == 0 || revision == last.KV.ModRevision) {
			id, err := b.insert(ctx, remove, last.KV.ModRevision, key)
			if err != nil && !b.dialect.taken(err) {
				return 0, nil, false, b.faults.note(err)
			}
			if err == nil && id != 0 {
				return id, last.KV, true, nil
			}
			// Somebody else changed the key first, so look again.
			continue
		}
		now, kv, err := b.Get(ctx, key, 0, false)
		if err != nil || kv == nil {
			// etcd answers the same way: nothing was deleted, and nothing is
			// there.
			return now, nil, err == nil && revision == 0, err
		}
		if revision != 0 && revision != kv.ModRevision {
			return now, kv, false, nil
		}
		// Somebody else changed the key between the two looks, so try again.
	}
}

// Compact implements server.Backend. Several servers may compact at once: each
// transaction continues only from the revision where the last one ended.
func (b *Backend) Compact(ctx context.Context, revision int64) (int64, error) {
	now, err := b.CurrentRevision(ctx)
	if err != nil {
		return 0, err
	}
	from, err := b.number(ctx, compacted)
	if err != nil {
		return now, b.faults.note(err)
	}
	switch {
	case revision > now:
		return now, server.ErrFutureRev
	case revision <= from:
		return now, server.ErrCompacted
	}
	for last := min(revision, now-retainRevisions); from < last; {
		to := min(from+compactBatch, last)
		done, err := b.compactTo(ctx, from, to)
		if err != nil {
			return now, b.faults.note(fmt.Errorf("compact: %w", err))
		}
		if !done {
			return now, server.ErrCompacted
		}
		from = to
	}
	return now, nil
}

// compactTo compacts the revisions between from and to. It returns false if
// another server has compacted meanwhile.
func (b *Backend) compactTo(ctx context.Context, from, to int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, compactTimeout)
	defer cancel()
	tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return false, err
	}
	// After a commit, Rollback does nothing. If it fails, the statements before
	// have failed too.
	defer func() { _ = tx.Rollback() }()
	var found sql.NullInt64
	if err := tx.QueryRowContext(ctx, compacted).Scan(&found); err != nil || found.Int64 != from {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, b.dialect.bind(b.dialect.compact), from, to, from, to); err != nil {
		return false, err
	}
	if _, err := tx.ExecContext(ctx, b.dialect.bind(setCompacted), to, from); err != nil {
		return false, err
	}
	return true, tx.Commit()
}

// events runs a statement that returns changes. values and old tell whether the
// statement also selects the values and the old values.
func (b *Backend) events(ctx context.Context, statement string, args []any, values, old bool) ([]*server.Event, error) {
	rows, err := b.db.QueryContext(ctx, b.dialect.bind(statement), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var events []*server.Event
	for rows.Next() {
		kv, previous := &server.KeyValue{}, &server.KeyValue{}
		event := &server.Event{KV: kv}
		into := []any{&kv.ModRevision, &kv.Key, &event.Create, &event.Delete, &kv.CreateRevision, &previous.ModRevision, &kv.Lease}
		if values {
			into = append(into, &kv.Value)
		}
		if old {
			into = append(into, &previous.Value)
		}
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		if event.Create {
			kv.CreateRevision = kv.ModRevision
		} else {
			previous.Key, previous.CreateRevision = kv.Key, kv.CreateRevision
			event.PrevKV = previous
		}
		events = append(events, event)
	}
	// Without this check, a list that broke off would pass for a shorter list.
	return events, rows.Err()
}
