package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/kedge-dev/kedge/internal/datastore/kvapi/lists"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/watches"
)

// reader reads the database at a revision, on connections of its own. It never
// waits for the writer.
type reader struct {
	db                          *sql.DB
	get, list, keys, count, all *sql.Stmt
	size, superseded            *sql.Stmt
}

// openReader opens the database in file. prepare must have prepared it.
func openReader(file string) (*reader, error) {
	r := &reader{db: sql.OpenDB(&connector{file: file, readOnly: true})}
	// A connection that is closed and opened again costs as much as many reads, so all stay for a while.
	r.db.SetMaxOpenConns(4)
	r.db.SetMaxIdleConns(4)
	r.db.SetConnMaxIdleTime(2 * time.Minute)
	for statement, query := range map[**sql.Stmt]string{
		&r.get: getSQL, &r.list: fmt.Sprintf(listSQL, "value"), &r.keys: fmt.Sprintf(listSQL, "NULL"),
		&r.count: countSQL, &r.all: eventsSQL, &r.size: sizeSQL,
		&r.superseded: supersededSQL,
	} {
		prepared, err := r.db.Prepare(query)
		if err != nil {
			r.db.Close()
			return nil, err
		}
		*statement = prepared
	}
	return r, nil
}

// query calls scan for each row of the answer. It passes no context to
// go-sqlite3, which would start a goroutine for each statement and each row to
// watch the context.
func query(ctx context.Context, statement *sql.Stmt, scan func(*sql.Rows) error, args ...any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rows, err := statement.Query(args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// scanRow reads one row of getSQL or listSQL.
func scanRow(rows *sql.Rows) (kv *server.KeyValue, deleted bool, err error) {
	kv = &server.KeyValue{}
	var created bool
	err = rows.Scan(&kv.ModRevision, &kv.Key, &created, &deleted, &kv.CreateRevision, &kv.Lease, &kv.Value)
	if created {
		kv.CreateRevision = kv.ModRevision
	}
	return kv, deleted, err
}

// row returns the last row of key at revision, or nil if there is none.
func row(ctx context.Context, get *sql.Stmt, key string, revision int64) (kv *server.KeyValue, deleted bool, err error) {
	err = query(ctx, get, func(rows *sql.Rows) (err error) {
		kv, deleted, err = scanRow(rows)
		return err
	}, key, revision)
	return kv, deleted, err
}

// answer returns the error of a read. A database error comes first, then the fact
// that the revision has been compacted meanwhile.
func (b *Backend) answer(ctx context.Context, revision int64, err error) error {
	switch {
	case b.faults.err() != nil:
		return b.faults.err()
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return b.faults.note(err)
	}
	return b.state.check(revision)
}

// look returns the current revision, the revision to read at, and the versions
// that memory has for it. The revision to read at is revision, or the current one
// if revision is 0.
func (b *Backend) look(key, end string, revision int64) (current, at int64, memory []version, err error) {
	if err := b.state.check(revision); err != nil {
		return b.state.current(), 0, nil, err
	}
	b.state.mu.RLock()
	defer b.state.mu.RUnlock()
	current = b.state.revision
	at = cmp.Or(revision, current)
	if end != "" {
		return current, at, b.state.memory.between(key, end, at), nil
	}
	if v, ok := b.state.memory.at(key, at); ok {
		memory = []version{v}
	}
	return current, at, memory, nil
}

// Get implements server.Backend.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	current, at, memory, err := b.look(key, "", revision)
	if err != nil {
		return current, nil, err
	}
	if len(memory) > 0 {
		return current, present(memory[0], keysOnly), b.answer(ctx, revision, nil)
	}
	kv, deleted, err := row(ctx, b.reader.get, key, at)
	if err = b.answer(ctx, revision, err); err != nil || deleted {
		return current, nil, err
	}
	return current, kv, nil
}

// present returns the key and value after v, or nil if v is a deletion.
func present(v version, keysOnly bool) *server.KeyValue {
	if v.Delete {
		return nil
	}
	if keysOnly {
		kv := *v.KV
		kv.Value = nil
		return &kv
	}
	return v.KV
}

// lastOf translates the end of a range. etcd's API marks "all keys from" with a
// zero byte, and kine's server marks all keys with an empty key and end; the result
// is behind all keys.
func lastOf(key, end string) string {
	if end == "\x00" || key == "" && end == "" {
		return "\xff"
	}
	return end
}

// List implements server.Backend. A limit of 0 means no limit.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	end = lastOf(key, end)
	if end == "" {
		current, kv, err := b.Get(ctx, key, revision, keysOnly)
		if kv == nil {
			return current, nil, err
		}
		return current, []*server.KeyValue{kv}, err
	}
	current, at, memory, err := b.look(key, end, revision)
	if err != nil {
		return current, nil, err
	}
	statement, rowLimit := b.reader.list, int64(-1)
	if keysOnly {
		statement = b.reader.keys
	}
	if limit > 0 {
		// Each key in memory may replace a row.
		rowLimit = limit + int64(len(memory))
	}
	kvs := []*server.KeyValue{}
	add := func(kv *server.KeyValue) {
		if kv != nil && (limit <= 0 || int64(len(kvs)) < limit) {
			kvs = append(kvs, kv)
		}
	}
	err = query(ctx, statement, func(rows *sql.Rows) error {
		kv, _, err := scanRow(rows)
		if err != nil {
			return err
		}
		for len(memory) > 0 && memory[0].KV.Key < kv.Key {
			add(present(memory[0], keysOnly))
			memory = memory[1:]
		}
		if len(memory) > 0 && memory[0].KV.Key == kv.Key {
			add(present(memory[0], keysOnly))
			memory = memory[1:]
			return nil
		}
		add(kv)
		return nil
	}, key, end, at, rowLimit)
	for _, v := range memory {
		add(present(v, keysOnly))
	}
	if err := b.answer(ctx, revision, err); err != nil {
		return current, nil, err
	}
	return current, kvs, nil
}

// ListStream implements server.Backend.
func (b *Backend) ListStream(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) server.ListResult {
	return lists.Stream(ctx, b.List, key, end, limit, revision, keysOnly)
}

// Count implements server.Backend.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	end = lastOf(key, end)
	current, at, memory, err := b.look(key, end, revision)
	if err != nil {
		return current, 0, err
	}
	end = cmp.Or(end, key+"\x00")
	var count int64
	err = query(ctx, b.reader.count, func(rows *sql.Rows) error { return rows.Scan(&count) }, key, end, at)
	for _, v := range memory {
		kv, deleted, rowErr := row(ctx, b.reader.get, v.KV.Key, at)
		if rowErr != nil {
			err = rowErr
		}
		if kv != nil && !deleted {
			count--
		}
		if !v.Delete {
			count++
		}
	}
	return current, count, b.answer(ctx, revision, err)
}

// events returns the events for w up to revision, in order. missed are those that
// memory has.
func (b *Backend) events(ctx context.Context, w *watches.Watch, revision int64, missed []*server.Event) ([]*server.Event, error) {
	first := max(w.After, 1) // 0 stands for the current one
	if err := b.state.check(first); err != nil {
		return nil, err
	}
	key, end := w.Key, w.End
	if end == "" && key != "" {
		end = key + "\x00"
	}
	found := missed
	err := query(ctx, b.reader.all, func(rows *sql.Rows) error {
		event, err := scanEvent(rows)
		if err == nil {
			found = append(found, event)
		}
		return err
	}, w.After, revision, key, end)
	// Events that are in both are taken from memory, which comes first in found:
	// a row knows only the previous row, and a version between them may never
	// have been written.
	slices.SortStableFunc(found, byRevision)
	found = slices.CompactFunc(found, func(a, b *server.Event) bool { return byRevision(a, b) == 0 })
	return found, b.answer(ctx, first, err)
}

// scanEvent reads one row of eventsSQL.
func scanEvent(rows *sql.Rows) (*server.Event, error) {
	e := &server.Event{KV: &server.KeyValue{}}
	var previous struct {
		id, create, lease sql.NullInt64
		created           sql.NullBool
		value             []byte
	}
	err := rows.Scan(&e.KV.ModRevision, &e.KV.Key, &e.Create, &e.Delete, &e.KV.CreateRevision, &e.KV.Lease, &e.KV.Value,
		&previous.id, &previous.created, &previous.create, &previous.lease, &previous.value)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read event: %w", err)
	case e.Create:
		e.KV.CreateRevision = e.KV.ModRevision
	case previous.id.Valid:
		e.PrevKV = &server.KeyValue{
			Key: e.KV.Key, Value: previous.value, Lease: previous.lease.Int64,
			CreateRevision: previous.create.Int64, ModRevision: previous.id.Int64,
		}
		if previous.created.Bool {
			e.PrevKV.CreateRevision = previous.id.Int64
		}
	}
	return e, nil
}

// CurrentRevision implements server.Backend.
func (b *Backend) CurrentRevision(context.Context) (int64, error) { return b.state.current(), nil }

// DbSize implements server.Backend. It returns the used part of the database in
// bytes.
func (b *Backend) DbSize(ctx context.Context) (size int64, err error) {
	err = query(ctx, b.reader.size, func(rows *sql.Rows) error { return rows.Scan(&size) })
	return size, b.answer(ctx, 0, err)
}
