package kine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/ttl"
	"github.com/mattn/go-sqlite3"
)

// The values kine's own command has by default (pkg/app/app.go). The API server
// asks for compaction, every 5 minutes, so kine does none by itself.
const (
	compactTimeout      = 5 * time.Second
	compactMinRetain    = 1000 // revisions
	compactBatchSize    = 1000 // revisions
	pollBatchSize       = 500  // revisions
	progressInterval    = 5 * time.Second
	emulatedETCDVersion = "3.6.11" // has RequestWatchProgress, which the API server asks for
)

// schema and the two queries below are those of kine's pkg/drivers/sqlite. That
// package cannot be used itself: it has no way to say how connections are
// opened, its start tries for 5 minutes to open what cannot be opened, and its
// Migrate leaves a connection open for ever, so that the log is not
// checkpointed at the end. A test compares them with kine's.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS kine
			(
				id INTEGER PRIMARY KEY AUTOINCREMENT,
				name TEXT,
				created INTEGER,
				deleted INTEGER,
				create_revision INTEGER,
				prev_revision INTEGER,
				lease INTEGER,
				value BLOB,
				old_value BLOB
			)`,
	`CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)`,
	`CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name,id)`,
	`CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id,deleted)`,
	`CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)`,
	`CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, prev_revision)`,
	`CREATE INDEX IF NOT EXISTS kine_id_compact_rev_key_with_prev_revision_index ON kine(id, name, prev_revision) WHERE name != 'compact_rev_key' AND prev_revision != 0`,
}

const (
	sizeSQL = `
		SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`
	compactSQL = `
		DELETE FROM kine AS kv
		WHERE kv.id IN (
				SELECT kp.prev_revision AS id
				FROM kine AS kp
				WHERE
					kp.name != 'compact_rev_key' AND
					kp.prev_revision != 0 AND
					kp.id <= ?
				UNION
				SELECT kd.id AS id
				FROM kine AS kd
				WHERE
					kd.deleted != 0 AND
					kd.id <= ?)`
)

// pool limits the connections: each may cache 2 MiB of the database. kine's own
// default keeps 20 and knows no limit.
var pool = generic.ConnectionPoolConfig{MaxIdle: 4, MaxOpen: 16, MaxIdleTime: 2 * time.Minute}

// openDialect connects kine to the database of faults, which prepare has made.
// The connections are closed, within wg, when ctx is cancelled.
func openDialect(ctx context.Context, wg *sync.WaitGroup, faults *faults) (*dialect, error) {
	sqlite, err := generic.OpenDB(ctx, wg, "sqlite", &connector{file: faults.file, faults: faults}, pool, "?", false, nil)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	sqlite.LastInsertID = true
	// Writers queue here, in order, and not in SQLite, where they sleep and try
	// again.
	sqlite.LockWrites = true
	sqlite.GetSizeSQL = query.New(sizeSQL, "?", false, "GetSize")
	sqlite.CompactSQL = query.New(compactSQL, "?", false, "Compact")
	sqlite.PostCompactSQL = query.New(`PRAGMA wal_checkpoint(FULL)`, "?", false, "PostCompactSQL")
	sqlite.TranslateErr = func(err error) error {
		if failure, ok := err.(sqlite3.Error); ok && failure.ExtendedCode == sqlite3.ErrConstraintUnique {
			return server.ErrKeyExists
		}
		return err
	}
	sqlite.ErrCode = errorCode
	return &dialect{sqlite}, nil
}

// errorCode is the label of err in kine's metrics.
func errorCode(err error) string {
	var failure sqlite3.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &failure):
		return strconv.Itoa(int(failure.ExtendedCode))
	}
	return "other"
}

// dialect is kine's, except that no transaction ends the process.
type dialect struct{ *generic.Generic }

// BeginTx implements server.Dialect.
func (d *dialect) BeginTx(ctx context.Context, opts *sql.TxOptions) (server.Transaction, error) {
	begun, err := d.Generic.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &transaction{begun}, nil
}

// After implements server.Dialect. That of the polling loop, which asks for
// every key, is not cut short by a stop: kine would log that as a failure.
func (d *dialect) After(ctx context.Context, key, end string, revision, limit int64) (*sql.Rows, error) {
	if key == "" {
		ctx = context.WithoutCancel(ctx)
	}
	return d.Generic.After(ctx, key, end, revision, limit)
}

// transaction is one of a compaction. kine's ends the process when it cannot be
// committed or rolled back (pkg/drivers/generic/tx.go), and on a full disk
// neither can: SQLite has then rolled it back by itself. faults has noted why.
type transaction struct{ server.Transaction }

// MustCommit implements server.Transaction. If it fails, the next compaction
// finds the revision of the last one and does the work again.
func (t *transaction) MustCommit() { _ = t.Commit() }

// MustRollback implements server.Transaction.
func (t *transaction) MustRollback() { _ = t.Rollback() }

// backend is kine's, with its own way to hand out events, and with every
// goroutine waited for at the end.
type backend struct {
	*logstructured.LogStructured
	log     *sqllog.SQLLog
	hub     *hub
	running sync.WaitGroup
}

func newBackend(d *dialect) *backend {
	log := sqllog.New(d, 0, 0, compactTimeout, compactMinRetain, compactBatchSize, pollBatchSize)
	return &backend{LogStructured: logstructured.New(log), log: log, hub: newHub(log)}
}

// start does what LogStructured.Start does. Everything ends when ctx does: call
// wait then.
func (b *backend) start(ctx context.Context) error {
	if err := b.log.Start(ctx); err != nil {
		return fmt.Errorf("start kine: %w", err)
	}
	events, err := b.hub.connect(ctx)
	if err != nil {
		return err
	}
	b.running.Go(func() { b.hub.run(ctx, events) })
	if _, err := b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0); err != nil && err != server.ErrKeyExists {
		return fmt.Errorf("write health key: %w", err)
	}
	b.running.Go(func() {
		// It gives up when its watch ends or it cannot read.
		for ctx.Err() == nil {
			ttl.Run(ctx, &expiring{b})
			sleep(ctx, time.Second)
		}
	})
	return nil
}

// wait waits for the goroutines that end with the context of start.
func (b *backend) wait() { b.running.Wait() }

// Watch implements server.Backend.
func (b *backend) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	return b.hub.Watch(ctx, key, end, revision)
}

// WaitForSyncTo implements server.Backend.
func (b *backend) WaitForSyncTo(revision int64) { b.hub.WaitForSyncTo(revision) }

// expiring is the backend for the deletion of expired keys.
type expiring struct{ *backend }

// Delete implements server.Backend. It returns the error of a failed delete,
// which LogStructured takes for a conflict, so that the key is tried again, and
// not before 10 seconds: a disk is not full for less.
func (e *expiring) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	ctx, request := withRequest(ctx)
	rev, kv, deleted, err := e.backend.Delete(ctx, key, revision)
	if failure := request.failure(); failure != nil {
		sleep(ctx, 10*time.Second)
		err = errors.New(failure.Error())
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return rev, kv, deleted, err
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
