package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/direct"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// Backend is kine's server.Backend over a SQLite database that nobody else writes
// to. The values that it is given and those that it returns are shared: callers
// must not change them.
type Backend struct {
	file    string
	faults  *faults
	meter   *measure.Meter
	state   *state
	writer  *writer
	reader  *reader
	running sync.WaitGroup
}

var _ direct.Backend = (*Backend)(nil)

// newBackend returns the backend for a database that prepare has prepared.
func newBackend(file string, faults *faults) *Backend {
	state := newState()
	meter := measure.NewMeter(faults.log, fmt.Sprintf("If commits take long, the disk under %s is slow: look at `iostat -x 1` "+
		"and `dmesg`, check what else writes to it, or set data-dir to a folder on a faster disk", filepath.Dir(file)))
	return &Backend{
		file: file, faults: faults, meter: meter, state: state,
		writer: &writer{
			state: state, faults: faults, meter: meter, queue: make(chan *change), ended: make(chan struct{}),
			leases: leases{byKey: map[string]*lease{}},
		},
	}
}

// Start implements server.Backend. The writer ends when ctx does. Then, and also
// after an error, wait must be called.
func (b *Backend) Start(ctx context.Context) error {
	if err := b.open(ctx); err != nil {
		return b.faults.note(err)
	}
	b.running.Go(func() { b.writer.run(ctx) })
	if _, err := b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0); err != nil && err != server.ErrKeyExists {
		return fmt.Errorf("write health key: %w", err)
	}
	return nil
}

func (b *Backend) open(ctx context.Context) (err error) {
	log, err := openLog(ctx, b.file)
	if err != nil {
		return err
	}
	b.writer.log = log
	if b.reader, err = openReader(b.file); err != nil {
		return err
	}
	last, compacted, err := b.writer.log.start()
	if err != nil {
		return err
	}
	b.writer.last, b.state.revision, b.state.compacted = last, last, compacted
	return b.readLeases(ctx)
}

// check reads the whole database while it is in use, and reports a damaged one as a
// fault. Otherwise damage in pages that nobody reads would stay unnoticed until it
// is too late. It takes one to two milliseconds per MiB. The API server is about to
// read most of these pages anyway.
func (b *Backend) check(ctx context.Context) {
	db := sql.OpenDB(&connector{file: b.file, readOnly: true})
	err := quickCheck(ctx, db, b.file)
	if err = errors.Join(err, db.Close()); err != nil && ctx.Err() == nil {
		_ = b.faults.note(err) // ends the component, or logs the error
	}
}

// readLeases starts the lifetime of all keys with a lease anew.
func (b *Backend) readLeases(ctx context.Context) error {
	statement, err := b.reader.db.Prepare(leasesSQL)
	if err != nil {
		return err
	}
	defer statement.Close()
	return query(ctx, statement, func(rows *sql.Rows) error {
		kv, deleted := &server.KeyValue{}, false
		err := rows.Scan(&kv.ModRevision, &kv.Key, &kv.Lease, &deleted)
		b.writer.leases.note(kv, deleted)
		return err
	})
}

// wait waits until the writer has ended, and closes the database.
func (b *Backend) wait() {
	b.running.Wait()
	b.state.end()
	b.close()
}

func (b *Backend) close() {
	var err error
	if b.reader != nil {
		err = b.reader.db.Close()
	}
	// Closing the last connection writes the log into the database.
	if b.writer.log != nil {
		err = errors.Join(err, b.writer.log.close())
	}
	if err != nil {
		b.faults.log.Errorf("close database: %v", err)
	}
}

// do hands c to the writer and returns its outcome.
func (b *Backend) do(ctx context.Context, c *change) outcome {
	if err := b.faults.err(); err != nil {
		return outcome{err: err}
	}
	return b.writer.do(ctx, c)
}

// Create implements server.Backend.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	o := b.do(ctx, &change{kind: kindCreate, key: key, value: value, lease: lease})
	return o.revision, o.err
}

// Update implements server.Backend.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	o := b.do(ctx, &change{kind: kindUpdate, key: key, value: value, revision: revision, lease: lease})
	return o.revision, o.kv, o.ok, o.err
}

// Delete implements server.Backend. A revision of 0 stands for any. If there is
// nothing to delete, it returns no error, and ok only if revision is 0.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	o := b.do(ctx, &change{kind: kindRemove, key: key, revision: revision})
	return o.revision, o.kv, o.ok, o.err
}

// Compact implements server.Backend. From now on, superseded values up to
// revision cannot be read. Their rows are deleted when there are enough of them.
func (b *Backend) Compact(ctx context.Context, revision int64) (int64, error) {
	current, err := b.state.compact(revision)
	if err != nil {
		return current, err
	}
	var superseded int64
	err = query(ctx, b.reader.superseded, func(rows *sql.Rows) error { return rows.Scan(&superseded) }, revision)
	if err := b.answer(ctx, 0, err); err != nil {
		return current, err
	}
	for superseded >= sweepWorth {
		o := b.do(ctx, &change{kind: kindSweep, revision: revision})
		if o.err == nil && o.ok {
			o = b.shrink(ctx)
		}
		if o.ok || o.err != nil {
			return b.state.current(), o.err
		}
	}
	return current, nil
}

// shrink gives unused space of the database back to the disk, if there is much of
// it.
func (b *Backend) shrink(ctx context.Context) outcome {
	size, err := fileSize(b.file)
	if err != nil {
		return outcome{err: b.faults.note(err)}
	}
	used, err := b.DbSize(ctx)
	if err != nil || used > shrinkMost || size-used < shrinkWorth {
		return outcome{ok: true, err: err}
	}
	return b.do(ctx, &change{kind: kindShrink})
}
