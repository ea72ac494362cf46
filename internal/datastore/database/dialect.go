package database

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/k3s-io/kine/pkg/drivers"
	kinemysql "github.com/k3s-io/kine/pkg/drivers/mysql"
	kinepgsql "github.com/k3s-io/kine/pkg/drivers/pgsql"
)

// dialect is what differs between the databases.
type dialect struct {
	// title is the database's name for people.
	title  string
	driver drivers.Constructor
	// numbered says that parameters are $1, $2 … and that an INSERT returns the
	// id; else they are ?, and the driver knows the id.
	numbered bool
	// compact deletes the rows that have been replaced, and those of deleted
	// keys, by rows above one revision and up to another, twice each.
	compact string
	// size returns how many bytes the table has.
	size string
	// taken tells whether a row was refused because another one is the next
	// version of its key; again, because another one has its id, or is in a
	// deadlock with it.
	taken, again func(error) bool
	// missing tells whether there is no such database.
	missing func(error) bool
}

var postgres = &dialect{
	title:    "PostgreSQL",
	driver:   kinepgsql.New,
	numbered: true,
	compact: `DELETE FROM kine USING (
			SELECT prev_revision AS id FROM kine WHERE name <> 'compact_rev_key' AND prev_revision <> 0 AND id > ? AND id <= ?
			UNION SELECT id FROM kine WHERE deleted <> 0 AND id > ? AND id <= ?
		) AS gone WHERE kine.id = gone.id`,
	size: `SELECT pg_total_relation_size('kine')`,
	taken: func(err error) bool {
		var failure *pgconn.PgError
		return errors.As(err, &failure) && failure.Code == pgerrcode.UniqueViolation && failure.ConstraintName != "kine_pkey"
	},
	again: func(err error) bool {
		var failure *pgconn.PgError
		return errors.As(err, &failure) && (failure.Code == pgerrcode.DeadlockDetected ||
			failure.Code == pgerrcode.UniqueViolation && failure.ConstraintName == "kine_pkey")
	},
	missing: func(err error) bool {
		var failure *pgconn.PgError
		return errors.As(err, &failure) && failure.Code == pgerrcode.InvalidCatalogName
	},
}

// Numbers of MySQL's and MariaDB's errors.
const (
	mysqlTooManyConnections = 1040
	mysqlDatabaseDenied     = 1044
	mysqlAccessDenied       = 1045
	mysqlNoDatabase         = 1049
	mysqlDuplicate          = 1062
	mysqlTableDenied        = 1142
	mysqlDeadlock           = 1213
)

var mySQL = &dialect{
	title:  "MySQL",
	driver: kinemysql.New,
	compact: `DELETE kine FROM kine JOIN (
			SELECT prev_revision AS id FROM kine WHERE name <> 'compact_rev_key' AND prev_revision <> 0 AND id > ? AND id <= ?
			UNION SELECT id FROM kine WHERE deleted <> 0 AND id > ? AND id <= ?
		) AS gone ON kine.id = gone.id`,
	size: `SELECT SUM(data_length + index_length) FROM information_schema.tables
		WHERE table_schema = DATABASE() AND table_name = 'kine'`,
	taken: func(err error) bool {
		var failure *mysql.MySQLError
		return errors.As(err, &failure) && failure.Number == mysqlDuplicate && !strings.Contains(failure.Message, "PRIMARY")
	},
	again: func(err error) bool {
		var failure *mysql.MySQLError
		return errors.As(err, &failure) && (failure.Number == mysqlDeadlock ||
			failure.Number == mysqlDuplicate && strings.Contains(failure.Message, "PRIMARY"))
	},
	missing: func(err error) bool {
		var failure *mysql.MySQLError
		return errors.As(err, &failure) && failure.Number == mysqlNoDatabase
	},
}

// bind returns a statement, written with ?, as the database wants it.
func (d *dialect) bind(statement string) string {
	if !d.numbered {
		return statement
	}
	var bound strings.Builder
	for i, part := range strings.Split(statement, "?") {
		if i > 0 {
			bound.WriteString("$" + strconv.Itoa(i))
		}
		bound.WriteString(part)
	}
	return bound.String()
}

const (
	columns = "id, name, created, deleted, create_revision, prev_revision, lease"
	// head is the last revision, and compacted what all up to it was compacted
	// to; both are NULL in an empty table.
	head      = "SELECT MAX(id) FROM kine"
	compacted = "SELECT MAX(prev_revision) FROM kine WHERE name = 'compact_rev_key'"
	// create is a new key, or one that had been deleted.
	create = `INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		VALUES (?, 1, 0, 0, ?, ?, ?, NULL)`
	// follow makes a row that replaces the one with the given id and name, if
	// that is there.
	follow = `INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		SELECT name, 0, %d, CASE WHEN created <> 0 THEN id ELSE create_revision END, id, %s, %s, value
		FROM kine WHERE id = ? AND name = ? AND deleted = 0`
	// fill takes an id away from whoever has not used it yet.
	fill = `INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		VALUES (?, ?, 0, 1, 0, 0, 0, NULL, NULL)`
	setCompacted = "UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'"
)

// fillPrefix begins the names of rows that are nothing but ids; kine's own.
const fillPrefix = "gap-"

var (
	update = fmt.Sprintf(follow, 0, "?", "?")
	remove = fmt.Sprintf(follow, 1, "0", "NULL")
)
