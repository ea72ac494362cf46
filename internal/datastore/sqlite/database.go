package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// parts are the suffixes of a database's files.
var parts = [...]string{"-wal", "-shm", ""}

// schemaVersion is the version of the tables in the database, kine's and kedge's.
// It increases when older versions of kedge cannot use them any more.
const schemaVersion = 1

// prepare makes the database in file ready for kedge of the given version, for
// example v1.36.3+kedge.1. It returns true if it has read the whole database. After
// an error the database is as before.
func prepare(ctx context.Context, file, version string) (checked bool, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return false, fmt.Errorf("make folder of the database: %w", err)
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return true, makeDatabase(ctx, file, version)
	}
	unclean, err := look(file)
	if err != nil {
		return false, err
	}
	db := sql.OpenDB(&connector{file: file})
	defer func() { err = errors.Join(err, db.Close()) }()
	// Reading the whole database takes time. It is done before the start only if the
	// database was not closed in order. Otherwise Backend.check does it after the
	// start.
	if unclean {
		if err := quickCheck(ctx, db, file); err != nil {
			return false, err
		}
	}
	return unclean, makeTables(ctx, db, file, version)
}

// makeTables makes the tables that do not exist.
func makeTables(ctx context.Context, db *sql.DB, file, version string) error {
	if err := record(ctx, db, file, version); err != nil {
		return fmt.Errorf("record version: %w", err)
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	return nil
}

// makeDatabase makes a new database, for root only. It makes it beside its place
// and moves it there once it has its tables. So an empty file in that place never
// comes from kedge, even if kedge was interrupted.
func makeDatabase(ctx context.Context, file, version string) (err error) {
	made := file + ".new"
	remove := func() error {
		var faults []error
		for _, part := range parts {
			if err := os.Remove(made + part); !errors.Is(err, fs.ErrNotExist) {
				faults = append(faults, err)
			}
		}
		return errors.Join(faults...)
	}
	if err := remove(); err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()
	opened, err := os.OpenFile(made, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	if err := opened.Close(); err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	db := sql.OpenDB(&connector{file: made})
	// Closing the last connection writes the log into the database.
	if err := errors.Join(makeTables(ctx, db, made, version), db.Close()); err != nil {
		return err
	}
	if err := os.Rename(made, file); err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	return syncFolders(filepath.Dir(file))
}

// look tells whether the database was not closed in order. It refuses a database
// that SQLite would take for new, or of which SQLite would lose a part.
func look(file string) (unclean bool, err error) {
	size, err := fileSize(file)
	if err != nil {
		return false, err
	}
	logSize, err := fileSize(file + "-wal")
	if err != nil {
		return false, err
	}
	if size == 0 {
		// SQLite would delete the log, if there is one, and begin with an empty database.
		return false, damaged(file, errors.New("it is empty"))
	}
	if err := checkWAL(file); err != nil {
		return false, err
	}
	// SQLite would fall back to read-only access.
	opened, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return false, fmt.Errorf("open database: %w", err)
	}
	if err := opened.Close(); err != nil {
		return false, fmt.Errorf("open database: %w", err)
	}
	return logSize > 0, nil
}

// fileSize returns the size of a regular file in bytes, or 0 if there is no file.
func fileSize(file string) (int64, error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look at database: %w", err)
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a file: move it away, because kedge keeps its database there", file)
	}
	return info.Size(), nil
}

// syncFolders writes the entry of a new file in folder, and those of the folders
// above, to the disk. A database whose name is lost is useless.
func syncFolders(folder string) error {
	for ; ; folder = filepath.Dir(folder) {
		opened, err := os.Open(folder)
		if err != nil {
			return fmt.Errorf("sync folder: %w", err)
		}
		err = opened.Sync()
		opened.Close()
		// Some file systems cannot sync a folder.
		if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("sync folder: %w", err)
		}
		if folder == filepath.Dir(folder) {
			return nil
		}
	}
}

// quickCheck returns an error if the database is damaged.
func quickCheck(ctx context.Context, db interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, file string) error {
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return fmt.Errorf("check database: %w", err)
	}
	if verdict != "ok" {
		return damaged(file, errors.New(strings.ReplaceAll(verdict, "\n", " ")))
	}
	return nil
}

// record refuses a database that this kedge cannot read, and records which version is the
// oldest that can from now on. It always writes, so that a full disk is noticed here.
func record(ctx context.Context, db *sql.DB, file, version string) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS kedge (name TEXT PRIMARY KEY, value TEXT NOT NULL)`); err != nil {
		return err
	}
	oldest, err := oldestReader(version)
	if err != nil {
		return err
	}
	// Versions up to v1.36 know "version", and wrote their own one there.
	last := map[string]string{"schema": "0", "version": oldest, "starts": "0"}
	if err := readRecord(ctx, tx, last); err != nil {
		return err
	}
	if err := acceptable(file, last["schema"], last["version"], cmp.Or(last["used"], last["version"]), version); err != nil {
		return err
	}
	starts, _ := strconv.Atoi(last["starts"]) // only people read it
	for name, value := range map[string]string{
		"schema":  strconv.Itoa(schemaVersion),
		"version": oldest,
		"used":    version,
		"starts":  strconv.Itoa(starts + 1),
	} {
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO kedge (name, value) VALUES (?, ?)`, name, value); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func readRecord(ctx context.Context, tx *sql.Tx, into map[string]string) error {
	found, err := tx.QueryContext(ctx, `SELECT name, value FROM kedge`)
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var name, value string
		if err := found.Scan(&name, &value); err != nil {
			return err
		}
		into[name] = value
	}
	return found.Err()
}

// oldestReader returns the oldest version of kedge that can read what a version stores: that
// of one minor version before, as Kubernetes wants for servers that are upgraded one at a time.
func oldestReader(version string) (string, error) {
	own, err := utilversion.ParseSemantic(version)
	if err != nil {
		return "", fmt.Errorf("read kedge's own version: %w", err)
	}
	return fmt.Sprintf("v%d.%d.0", own.Major(), max(own.Minor(), 1)-1), nil
}

// acceptable returns an error if kedge of version ours cannot use a database that has the
// given schema, and that only kedge of version oldest or later can read. used is the version
// that has used it last.
func acceptable(file, schema, oldest, used, ours string) error {
	number, err := strconv.Atoi(schema)
	if err != nil {
		return damaged(file, fmt.Errorf("its schema version is %q", schema))
	}
	needed, err := utilversion.ParseSemantic(oldest)
	if err != nil {
		return damaged(file, fmt.Errorf("read its version: %w", err))
	}
	own, err := utilversion.ParseSemantic(ours)
	if err != nil {
		return fmt.Errorf("read kedge's own version: %w", err)
	}
	if number > schemaVersion || needed.Major() > own.Major() ||
		needed.Major() == own.Major() && needed.Minor() > own.Minor() {
		return fmt.Errorf("%s was last used by kedge %s, and this one, %s, is too old to read it: "+
			"install %[2]s or later, or restore a copy of the database from before the upgrade",
			file, used, ours)
	}
	return nil
}
