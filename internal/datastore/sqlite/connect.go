package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/url"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// dsn returns the name with which every connection to the database in file is
// opened. The file must exist: a connection never makes one. So a database that
// was moved away is noticed, and not replaced by an empty one.
func dsn(file string, readOnly bool) string {
	u := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"mode": {"rw"}, // readers write too: the index of the log
		// Writes are on the disk before they are acknowledged. go-sqlite3's
		// default is NORMAL, which may lose the last writes in a power cut.
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
		// Only a user's sqlite3 can hold a lock. A connection waits this many
		// milliseconds for it.
		"_busy_timeout": {"30000"},
		"_query_only":   {fmt.Sprint(readOnly)},
		"_cache_size":   {"-512"}, // KiB; the kernel caches the file's pages anyway
	}.Encode()}
	return u.String()
}

// settings are applied to every new connection.
var settings = []string{
	// A long list is sorted in memory rather than in /var/tmp, which may be
	// missing or full and is often on the same SD card.
	"PRAGMA temp_store = MEMORY",
	// The log is copied into the database after this many pages, and shrinks to
	// this many bytes after a burst.
	"PRAGMA wal_autocheckpoint = 1000",
	"PRAGMA journal_size_limit = 8388608",
}

// connector opens the connections of a pool.
type connector struct {
	file     string
	readOnly bool
}

// Driver implements driver.Connector.
func (c *connector) Driver() driver.Driver { return &sqlite3.SQLiteDriver{} }

// Connect implements driver.Connector. It fails if the connection would
// acknowledge writes before they are on the disk.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	opened, err := c.Driver().Open(dsn(c.file, c.readOnly))
	if err != nil {
		return nil, err
	}
	if err := configure(ctx, opened.(*sqlite3.SQLiteConn), c.file); err != nil {
		opened.Close()
		return nil, err
	}
	return opened, nil
}

// configure applies the settings to a connection, and checks those that safety
// depends on. On some file systems SQLite cannot apply them.
func configure(ctx context.Context, conn *sqlite3.SQLiteConn, file string) error {
	for _, setting := range settings {
		if _, err := conn.ExecContext(ctx, setting, nil); err != nil {
			return fmt.Errorf("configure connection: %w", err)
		}
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		got, err := pragmaValue(ctx, conn, pragma)
		if err != nil {
			return fmt.Errorf("check connection: %w", err)
		}
		if !strings.EqualFold(got, want) {
			return fmt.Errorf("SQLite has set %s to %s, not to %s, on %s: writes would not be safe there",
				pragma, got, want, file)
		}
	}
	return nil
}

func pragmaValue(ctx context.Context, conn *sqlite3.SQLiteConn, name string) (string, error) {
	rows, err := conn.QueryContext(ctx, "PRAGMA "+name, nil)
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
