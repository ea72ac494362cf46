package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

const (
	// One statement inserts at most insertRows rows, and not many more than
	// insertBytes bytes.
	insertRows  = 100
	insertBytes = 1 << 20
	// closing is how long the database may take to notice that a stopped server
	// is gone.
	closing = 5 * time.Second
)

// LastRevision implements datastore.Snapshotter.
func (d *Datastore) LastRevision(ctx context.Context) (int64, error) {
	var last sql.NullInt64
	err := d.connected(ctx, func(db *sql.DB) error {
		err := db.QueryRowContext(ctx, head).Scan(&last)
		if d.target.dialect.missing(err) {
			return nil
		}
		return err
	})
	return last.Int64, err
}

// Prepare implements datastore.Snapshotter. It fills a second table beside the
// one in use.
func (d *Datastore) Prepare(ctx context.Context, file, _ string, above int64) error {
	return d.connected(ctx, func(db *sql.DB) (err error) {
		if err := d.connect(ctx, db); err != nil {
			return err
		}
		if err := d.alone(ctx, db); err != nil {
			return err
		}
		defer func() {
			if err != nil { // the user needs to see err, not what fails here
				_, _ = db.ExecContext(context.WithoutCancel(ctx), d.target.dialect.dropRestoring)
			}
		}()
		if err := d.makeRestoring(ctx, db); err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := insertAll(ctx, tx, d.target.dialect, file, above); err != nil {
			return err
		}
		return tx.Commit()
	})
}

// makeRestoring makes the table to be filled, and whatever else is missing.
func (d *Datastore) makeRestoring(ctx context.Context, db *sql.DB) error {
	if err := d.prepare(ctx, d.target.source); err != nil {
		return err
	}
	// A restore that was killed may have left a table.
	for _, statement := range []string{d.target.dialect.dropRestoring, d.target.dialect.makeRestoring} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if d.target.restoring == "" {
		return nil
	}
	return d.prepare(ctx, d.target.restoring)
}

// alone returns an error if anybody else uses the database. A server that uses it
// always has connections.
func (d *Datastore) alone(ctx context.Context, db *sql.DB) error {
	for begun := time.Now(); ; time.Sleep(closing / 50) {
		others, err := d.others(ctx, db)
		if d.target.dialect.missing(err) {
			return nil
		}
		if err != nil || len(others) == 0 {
			return err
		}
		if time.Since(begun) > closing {
			hosts := slices.Compact(slices.Sorted(maps.Values(others)))
			return ownError{fmt.Errorf("%s is in use from %s: stop kedge on every server that uses it, k3s too, and everything else that uses it as this user",
				d.target, strings.Join(hosts, ", "))}
		}
	}
}

// others returns the hosts of all connections to the database, except db's single
// one.
func (d *Datastore) others(ctx context.Context, db *sql.DB) (map[int64]string, error) {
	rows, err := db.QueryContext(ctx, d.target.dialect.others)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	hosts := map[int64]string{}
	for rows.Next() {
		var id int64
		var host string
		if err := rows.Scan(&id, &host); err != nil {
			return nil, err
		}
		hosts[id] = host
	}
	return hosts, rows.Err()
}

// insertAll inserts the objects of file into the table. It adds kine's own row,
// with the last id, which says that all revisions up to above are compacted.
func insertAll(ctx context.Context, tx *sql.Tx, dialect *dialect, file string, above int64) error {
	var args []any
	rows, bytes, objects := 0, 0, 0
	insert := func() error {
		values := strings.Repeat("(?, ?, ?, 0, ?, ?, ?, ?, NULL), ", rows)
		_, err := tx.ExecContext(ctx, dialect.bind("INSERT INTO "+dialect.restoring+
			"(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) VALUES "+strings.TrimSuffix(values, ", ")), args...)
		args, rows, bytes = args[:0], 0, 0
		return err
	}
	err := readObjects(file, func(kv *mvccpb.KeyValue) error {
		created := 0
		if kv.CreateRevision == kv.ModRevision {
			created = 1
		}
		args = append(args, kv.ModRevision, string(kv.Key), created, kv.CreateRevision, 0, kv.Lease, kv.Value)
		rows, bytes, objects = rows+1, bytes+len(kv.Value), objects+1
		if bytes < insertBytes && rows < insertRows {
			return nil
		}
		return insert()
	})
	if err != nil {
		return err
	}
	if objects == 0 {
		return ownError{fmt.Errorf("%s contains no objects", file)}
	}
	args, rows = append(args, above, compactKey, 1, 0, above, 0, []byte{}), rows+1
	if err := insert(); err != nil {
		return err
	}
	if dialect.numberRestoring != "" {
		_, err = tx.ExecContext(ctx, dialect.bind(dialect.numberRestoring), above)
	}
	return err
}

// Commit implements datastore.Snapshotter. It renames tables, in one step.
func (d *Datastore) Commit(ctx context.Context, _, kept string) error {
	return d.connected(ctx, func(db *sql.DB) error {
		var there int
		if err := db.QueryRowContext(ctx, d.target.dialect.isRestoring).Scan(&there); err != nil || there == 0 {
			return err
		}
		if err := d.alone(ctx, db); err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		for _, statement := range d.target.dialect.replace {
			if _, err := tx.ExecContext(ctx, strings.ReplaceAll(statement, "KEPT", keptName(kept))); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

// keptName returns the name for the earlier table. It is made from the name of
// the folder in which other datastores keep the earlier data.
func keptName(kept string) string {
	return "kine_" + strings.ReplaceAll(filepath.Base(kept), "-", "_")
}

// Kept implements datastore.Snapshotter.
func (d *Datastore) Kept(kept string) string {
	return fmt.Sprintf("%s %s of %s", d.target.dialect.keptKind, keptName(kept), d.target)
}
