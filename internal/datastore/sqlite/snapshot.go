package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/mattn/go-sqlite3"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Datastore)(nil)

// Kind implements datastore.Snapshotter. Save writes a SQLite database with
// kine's table.
func (d *Datastore) Kind() string { return "sqlite" }

// stateFile is the name of the database.
const stateFile = "state.db"

// backupPages is how many pages are copied between two checks of the context.
const backupPages = 1024

// Save implements datastore.Snapshotter. It writes the deferred changes and then
// uses SQLite's online backup. Renewals stay in memory: Prepare gives every Lease
// a new revision, and clients that wait for a Lease to end wait anew.
func (d *Datastore) Save(ctx context.Context, file string) (revision int64, err error) {
	if o := d.backend.do(ctx, &change{kind: kindFlush}); o.err != nil {
		return 0, fmt.Errorf("write what is deferred: %w", o.err)
	}
	if err := copyDatabase(ctx, d.backend.file, file); err != nil {
		return 0, fmt.Errorf("copy database: %w", explain(file, err))
	}
	err = withDatabase(ctx, file, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, `SELECT MAX(id) FROM kine`).Scan(&revision)
	})
	return revision, err
}

// copyDatabase copies the database in the file from to the new file to.
func copyDatabase(ctx context.Context, from, to string) (err error) {
	opened, err := (&connector{file: from, readOnly: true}).Connect(ctx)
	if err != nil {
		return err
	}
	source := opened.(*sqlite3.SQLiteConn)
	defer func() { err = errors.Join(err, source.Close()) }()
	// All steps are in one transaction: they do not see what is written
	// meanwhile, so the backup need not begin again.
	for _, statement := range []string{`BEGIN`, `SELECT COUNT(*) FROM sqlite_schema`} {
		if _, err := source.ExecContext(ctx, statement, nil); err != nil {
			return err
		}
	}
	// The copy is not synced here: package snapshot syncs the snapshot that it
	// makes from it.
	u := url.URL{Scheme: "file", Path: to, RawQuery: "mode=rwc&_synchronous=OFF&_journal_mode=OFF"}
	opened, err = (&sqlite3.SQLiteDriver{}).Open(u.String())
	if err != nil {
		return err
	}
	target := opened.(*sqlite3.SQLiteConn)
	defer func() { err = errors.Join(err, target.Close()) }()
	backup, err := target.Backup("main", source, "main")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backup.Finish()) }()
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err = backup.Step(backupPages); err != nil {
			return err
		}
	}
	return nil
}

// withDatabase opens the database in file, which must exist, and closes it
// afterwards. Closing puts everything into the one file.
func withDatabase(ctx context.Context, file string, do func(*sql.DB) error) (err error) {
	db := sql.OpenDB(&connector{file: file})
	defer func() {
		if err = errors.Join(err, db.Close()); err != nil {
			err = explain(file, err)
		}
	}()
	db.SetMaxOpenConns(1)
	return do(db)
}

// LastRevision implements datastore.Snapshotter.
func (d *Datastore) LastRevision(ctx context.Context) (last int64, err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	if size, err := fileSize(file); err != nil || size == 0 {
		return 0, err
	}
	// The reserved revisions may have been handed out.
	err = withDatabase(ctx, file, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, `SELECT seq FROM sqlite_sequence WHERE name = 'kine'`).Scan(&last)
	})
	return last, err
}

// Prepare implements datastore.Snapshotter. Its database looks as if a crash had
// happened while all revisions up to the given one were reserved. log.start does
// the rest.
func (d *Datastore) Prepare(ctx context.Context, file, folder string, above int64) error {
	made := filepath.Join(folder, "db")
	if err := os.Mkdir(made, 0o700); err != nil {
		return fmt.Errorf("make folder of the database: %w", datadir.Explain(err))
	}
	taken := filepath.Join(made, stateFile)
	if err := os.Rename(file, taken); err != nil {
		return fmt.Errorf("take saved database: %w", datadir.Explain(err))
	}
	return withDatabase(ctx, taken, func(db *sql.DB) error {
		if err := quickCheck(ctx, db, taken); err != nil {
			return err
		}
		if err := record(ctx, db, taken, d.version); err != nil {
			return fmt.Errorf("record version: %w", err)
		}
		done, err := db.ExecContext(ctx, `UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'kine'`, above)
		if err != nil {
			return fmt.Errorf("reserve revisions: %w", err)
		}
		if n, err := done.RowsAffected(); err != nil || n != 1 {
			return errors.Join(fmt.Errorf("%s contains no objects", file), err)
		}
		return nil
	})
}

// Commit implements datastore.Snapshotter.
func (d *Datastore) Commit(_ context.Context, folder, kept string) error {
	return datadir.Replace(filepath.Join(folder, "db"), d.config.Dir, filepath.Join(kept, "db"))
}

// Kept implements datastore.Snapshotter.
func (d *Datastore) Kept(kept string) string { return kept }
