package sqldb

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

// dialect describes how one kind of database differs from the others.
type dialect struct {
	// title is the database's name for people.
	title  string
	driver drivers.Constructor
	// numbered is true if parameters are written $1, $2 … and an INSERT returns
	// the id. If it is false, parameters are written ?, and the driver knows the
	// id.
	numbered bool
	// compact deletes replaced rows and the rows of deleted keys, if the row that
	// replaces or deletes them is above one revision and up to another. It takes
	// both revisions twice.
	compact string
	// size returns the size of the table in bytes.
	size string
	// taken tells whether a row was refused because another row already is the
	// next version of its key. again tells whether it was refused because another
	// row has its id, or because of a deadlock.
	taken, again func(error) bool
	// missing tells whether the database or the table does not exist.
	missing func(error) bool

	// folds returns 1 if the table takes names for equal that differ in case, and
	// 0 if not. keepCase changes that. Both are empty if no table does that.
	folds, keepCase string

	// early returns 1 if the database shows changes to others before they are on its
	// disk, and 0 if not. beOnTime tells the user how to change that. Both are
	// empty if no such database does that.
	early, beOnTime string

	// others lists the user's other connections to the database, with the hosts
	// that they come from.
	others string
	// restoring is the table that a restore fills. isRestoring returns 1 if it
	// exists and 0 if not. numberRestoring sets the id after which new rows
	// continue. It is empty if that follows from the table's rows.
	restoring, makeRestoring, dropRestoring, isRestoring, numberRestoring string
	// replace puts the restored table in the place of the table kine, all or
	// nothing, and moves the earlier table to where KEPT says. KEPT stands for
	// the name of a keptKind.
	replace  []string
	keptKind string
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
		return errors.As(err, &failure) && (failure.Code == pgerrcode.InvalidCatalogName || failure.Code == pgerrcode.UndefinedTable)
	},
	others: `SELECT pid, COALESCE(host(client_addr), 'its own host') FROM pg_stat_activity
		WHERE datname = current_database() AND usename = current_user AND backend_type = 'client backend' AND pid <> pg_backend_pid()`,
	// The restored table is in a schema of its own. There its indexes and
	// sequence can have the names that kine's driver makes and looks for.
	restoring:       `kine_restoring.kine`,
	makeRestoring:   `CREATE SCHEMA ` + restoringSchema,
	dropRestoring:   `DROP SCHEMA IF EXISTS ` + restoringSchema + ` CASCADE`,
	isRestoring:     `SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'kine_restoring' AND table_name = 'kine'`,
	numberRestoring: `SELECT setval(pg_get_serial_sequence('kine_restoring.kine', 'id'), ?)`,
	replace: []string{
		`CREATE SCHEMA KEPT`,
		`ALTER TABLE kine SET SCHEMA KEPT`,
		`DO $$ BEGIN EXECUTE format('ALTER TABLE kine_restoring.kine SET SCHEMA %I', current_schema()); END $$`,
		`DROP SCHEMA ` + restoringSchema,
	},
	keptKind: "schema",
}

// restoringSchema is the schema in which PostgreSQL has the table that a restore
// fills.
const restoringSchema = "kine_restoring"

// These are the numbers of errors of MySQL and MariaDB.
const (
	mysqlTooManyConnections = 1040
	mysqlDatabaseDenied     = 1044
	mysqlAccessDenied       = 1045
	mysqlNoDatabase         = 1049
	mysqlDuplicate          = 1062
	mysqlTableDenied        = 1142
	mysqlNoTable            = 1146
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
		return errors.As(err, &failure) && (failure.Number == mysqlNoDatabase || failure.Number == mysqlNoTable)
	},
	folds: `SELECT COUNT(*) FROM information_schema.columns
		WHERE table_schema = DATABASE() AND table_name = 'kine' AND column_name = 'name' AND collation_name <> 'ascii_bin'`,
	keepCase: `ALTER TABLE kine MODIFY name VARCHAR(630) CHARACTER SET ascii COLLATE ascii_bin`,
	// InnoDB does, unless the change is in a synced binary log first. That is the
	// default of MySQL 8, and not of MariaDB.
	early:    `SELECT @@log_bin = 0 OR @@sync_binlog <> 1`,
	beOnTime: "Set log_bin and sync_binlog=1 in the configuration of the database, and restart it",
	others: `SELECT id, SUBSTRING_INDEX(host, ':', 1) FROM information_schema.processlist
		WHERE db = DATABASE() AND user = SUBSTRING_INDEX(USER(), '@', 1) AND id <> CONNECTION_ID()`,
	restoring:     `kine_restoring`,
	makeRestoring: `CREATE TABLE kine_restoring LIKE kine`,
	dropRestoring: `DROP TABLE IF EXISTS kine_restoring`,
	isRestoring:   `SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'kine_restoring'`,
	replace:       []string{`RENAME TABLE kine TO KEPT, kine_restoring TO kine`},
	keptKind:      "table",
}

// bind translates a statement written with ? into the database's form.
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
	// columns are those of an event. kine leaves create_revision out of rows that
	// create a key.
	columns = "id, name, created, deleted, COALESCE(create_revision, 0), prev_revision, lease"
	// head is the last revision, and compacted the revision up to which the table
	// is compacted. Both are NULL in an empty table.
	head      = "SELECT MAX(id) FROM kine"
	compacted = "SELECT MAX(prev_revision) FROM kine WHERE name = 'compact_rev_key'"
	// create inserts a key that is new, or that was deleted.
	//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/generic/generic.go
	create = `INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		VALUES (?, 1, 0, 0, ?, ?, ?, NULL)`
	// follow inserts a row that replaces the row with the given id and name, if
	// that row exists.
	follow = `INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		SELECT name, 0, %d, CASE WHEN created <> 0 THEN id ELSE create_revision END, id, %s, %s, value
		FROM kine WHERE id = ? AND name = ? AND deleted = 0`
	// fill inserts a row with a given id, so that no other writer can use the id
	// any more.
	fill = `INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		VALUES (?, ?, 0, 1, 0, 0, 0, NULL, NULL)`
	// setCompacted changes the row with the compacted revision. It leaves alone
	// the duplicates of that row that starts may have made.
	setCompacted = "UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key' AND prev_revision = ?"
)

// fillPrefix begins the names of rows that are nothing but ids; kine's own.
//
//upstream:relies-on github.com/k3s-io/kine/pkg/drivers/generic/generic.go Generic.Fill Generic.IsFill
const fillPrefix = "gap-"

var (
	update = fmt.Sprintf(follow, 0, "?", "?")
	remove = fmt.Sprintf(follow, 1, "0", "NULL")
)
