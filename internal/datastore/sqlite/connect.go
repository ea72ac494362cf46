package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/url"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// dsn is what every connection to the database in file is opened with. The
// file must exist: a connection never makes one, so that a database which was
// moved away is noticed and not replaced by an empty one.
func dsn(file string, readOnly bool) string {
	u := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"mode": {"rw"}, // a reader too writes the index of the log
		// An acknowledged write has reached the disk. go-sqlite3's own default
		// is NORMAL, which may lose the last ones in a power cut.
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"},
		// Only a user's sqlite3 can be in the way: it has this many ms.
		"_busy_timeout": {"30000"},
		"_query_only":   {fmt.Sprint(readOnly)},
		"_cache_size":   {"-512"}, // KiB; the kernel has the file's pages anyway
	}.Encode()}
	return u.String()
}

// settings are made on every connection after it was opened.
var settings = []string{
	// Sorting a long list goes to memory rather than to /var/tmp, which may be
	// missing or full and is often the same SD card.
	"PRAGMA temp_store = MEMORY",
	// The log is copied into the database after so many pages, and shrinks
	// back to so many bytes after a burst.
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

// Connect implements driver.Connector. It fails if the connection would not
// bring a write to the disk before acknowledging it.
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

// configure makes the settings of a connection and checks that SQLite has
// taken those that safety hangs on; on some file systems it cannot.
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
