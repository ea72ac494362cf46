package kine

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// dsn is what every connection to the database in file is opened with. The
// file must exist: a connection never makes one, so that a database which was
// moved away is noticed and not replaced by an empty one.
func dsn(file string) string {
	u := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"mode": {"rw"},
		// An acknowledged write has reached the disk. go-sqlite3's and kine's
		// own default is NORMAL, which may lose the last ones in a power cut.
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
		// A transaction that is going to write must not begin as a reader: it
		// could not become a writer after somebody else wrote.
		"_txlock":       {"immediate"},
		"_busy_timeout": {"30000"},
		// kine prepares its handful of statements anew for each query.
		"_stmt_cache_size": {"20"},
	}.Encode()}
	return u.String()
}

// settings are made on every connection after it was opened.
var settings = []string{
	// Sorting a long list goes to memory rather than to /var/tmp, which may be
	// missing or full and is often the same SD card.
	"PRAGMA temp_store = MEMORY",
	// The write-ahead log shrinks back to this many bytes after a burst.
	"PRAGMA journal_size_limit = 16777216",
}

// connector opens the connections of a pool and tells faults about every error
// that happens on them. kine drops some: it does not look at sql.Rows.Err, and
// takes each failed update for a conflict.
type connector struct {
	file   string
	faults *faults
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

// Connect implements driver.Connector. It fails if the connection would not
// bring a write to the disk before acknowledging it.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	plain, err := c.Driver().Open(dsn(c.file))
	if err != nil {
		return nil, c.faults.note(ctx, err)
	}
	opened := &conn{SQLiteConn: plain.(*sqlite3.SQLiteConn), faults: c.faults}
	if err := opened.configure(ctx); err != nil {
		opened.Close()
		return nil, err
	}
	return opened, nil
}

type conn struct {
	*sqlite3.SQLiteConn
	faults *faults
}

func (c *conn) configure(ctx context.Context) error {
	for _, statement := range settings {
		if _, err := c.SQLiteConn.ExecContext(context.Background(), statement, nil); err != nil {
			return fmt.Errorf("set up connection: %w", c.faults.note(ctx, err))
		}
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		got, err := c.pragma(ctx, pragma)
		if err != nil {
			return fmt.Errorf("check connection: %w", err)
		}
		if !strings.EqualFold(got, want) {
			return fmt.Errorf("SQLite has set %s to %s, not to %s, on %s: writes would not be safe there",
				pragma, got, want, c.GetFilename("main"))
		}
	}
	return nil
}

func (c *conn) pragma(ctx context.Context, name string) (string, error) {
	rows, err := c.QueryContext(ctx, "PRAGMA "+name, nil)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	value := make([]driver.Value, 1)
	if err := rows.Next(value); err != nil {
		return "", err
	}
	return fmt.Sprint(value[0]), nil
}

// ExecContext implements driver.ExecerContext. A statement once begun is not
// interrupted: go-sqlite3 would need a goroutine for each one to watch ctx, and
// one for each row that is read, and its interrupt may hit the wrong statement.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result, err := c.SQLiteConn.ExecContext(context.WithoutCancel(ctx), query, args)
	if err != nil {
		return nil, c.faults.note(ctx, err)
	}
	if strings.HasPrefix(query, "INSERT") {
		c.faults.wrote()
	}
	return result, nil
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found, err := c.SQLiteConn.QueryContext(context.WithoutCancel(ctx), query, args)
	if err != nil {
		return nil, c.faults.note(ctx, err)
	}
	return &rows{Rows: found, ctx: ctx, faults: c.faults}, nil
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	begun, err := c.SQLiteConn.BeginTx(context.WithoutCancel(ctx), opts)
	if err != nil {
		return nil, c.faults.note(ctx, err)
	}
	return &tx{Tx: begun, ctx: ctx, faults: c.faults}, nil
}

type rows struct {
	driver.Rows
	ctx    context.Context
	faults *faults
}

// Next implements driver.Rows.
func (r *rows) Next(values []driver.Value) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	err := r.Rows.Next(values)
	if err == nil || err == io.EOF {
		return err
	}
	return r.faults.note(r.ctx, err)
}

type tx struct {
	driver.Tx
	ctx    context.Context
	faults *faults
}

// Commit implements driver.Tx.
func (t *tx) Commit() error {
	if err := t.Tx.Commit(); err != nil {
		return t.faults.note(t.ctx, err)
	}
	return nil
}
