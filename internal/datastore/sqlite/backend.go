package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// Backend is kine's server.Backend over a SQLite database that nobody else
// writes to. Values it is given, and those it returns, are shared: they must
// not be changed.
type Backend struct {
	file    string
	faults  *faults
	meter   *measure.Meter
	state   *state
	writer  *writer
	reader  *reader
	running sync.WaitGroup
}

var _ server.Backend = (*Backend)(nil)

// newBackend returns the backend for a database that prepare has made.
func newBackend(file string, faults *faults) *Backend {
	state := newState()
	meter := measure.NewMeter(faults.log, fmt.Sprintf("If commits take long, the disk under %s does: look at `iostat -x 1` "+
		"and `dmesg`, and at who else writes there, or put kedge's data-dir on a faster disk", filepath.Dir(file)))
	return &Backend{
		file: file, faults: faults, meter: meter, state: state,
		writer: &writer{
			state: state, faults: faults, meter: meter, queue: make(chan *change), ended: make(chan struct{}),
			leases: leases{byKey: map[string]*lease{}},
		},
	}
}

// Start implements server.Backend. Everything ends when ctx does: call wait
// then, also after an error.
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

// check reads all of the database, beside everything else, and gives it up if it is
// damaged: the pages that nobody asks for would not be noticed otherwise until it is
// late. It takes one to two milliseconds for a MiB, and the API server is about to
// read most of the same pages.
func (b *Backend) check(ctx context.Context) {
	db := sql.OpenDB(&connector{file: b.file, readOnly: true})
	err := quickCheck(ctx, db, b.file)
	if err = errors.Join(err, db.Close()); err != nil && ctx.Err() == nil {
		_ = b.faults.note(err) // which ends the component, or logs it
	}
}

// readLeases begins anew the leases of all keys that have one.
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

// wait waits for all to end, and closes the database.
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
	// The last connection to be closed puts the log into the database.
	if b.writer.log != nil {
		err = errors.Join(err, b.writer.log.close())
	}
	if err != nil {
		b.faults.log.Errorf("close database: %v", err)
	}
}

// do has the writer do c.
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

// Delete implements server.Backend. A revision of 0 is for any. That there is
// nothing to delete is an answer, and ok if it was for any.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	o := b.do(ctx, &change{kind: kindRemove, key: key, revision: revision})
	return o.revision, o.kv, o.ok, o.err
}

// Compact implements server.Backend. What is superseded up to revision can no
// longer be asked for from now on, and leaves the database when it is worth it.
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

// shrink gives the disk back what the database does not use, if that is much.
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
