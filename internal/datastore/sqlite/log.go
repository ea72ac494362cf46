package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/k3s-io/kine/pkg/server"
)

const (
	// reserveBlock is how many revisions are reserved at a time. When half of
	// them are used, the next block is reserved, together with another write if
	// there is one. An idle node uses about a thousand an hour. After a crash up
	// to this many revisions are skipped.
	reserveBlock = 2000
	// sweepBatch is how many rows one transaction of a sweep looks at. sweepWorth
	// is how many rows must be superseded before there is a sweep: it writes as
	// much for one row as for many.
	sweepBatch = 1000
	sweepWorth = 256
	// shrinkWorth is how many bytes of the file must be free before it is made
	// smaller. shrinkMost is how many may be in use then, because changes have to
	// wait meanwhile.
	shrinkWorth = 64 << 20
	shrinkMost  = 32 << 20
)

// log is the writer's connection to the database. It adds rows at the end and
// deletes superseded ones.
//
// No revision is handed out twice, although not every revision leaves a row:
// revisions are reserved in blocks. The end of the block is the number that
// SQLite keeps for AUTOINCREMENT in sqlite_sequence, so that kine would not use a
// reserved revision either. While the log is open, that number is above every
// revision that was handed out. When the log is closed in order, the number is
// set to the last revision, which has a row. A higher number at the next start
// therefore means that there was a crash, and tells where to continue.
type log struct {
	db   *sql.DB
	conn *sql.Conn
	get  *sql.Stmt // getSQL
	add  *sql.Stmt // insertSQL

	marks
	// before are the marks from before the transaction.
	before marks
}

// marks are the facts about revisions that the database keeps.
type marks struct {
	// reserved is the end of the reserved block: only lower revisions can be
	// handed out.
	reserved int64
	// swept is the revision up to which superseded rows have been deleted.
	swept int64
}

// openLog opens the database in file. prepare must have prepared it.
func openLog(ctx context.Context, file string) (l *log, err error) {
	l = &log{db: sql.OpenDB(&connector{file: file})}
	if l.conn, err = l.db.Conn(ctx); err != nil {
		return nil, errors.Join(err, l.db.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.conn.Close(), l.db.Close())
		}
	}()
	if l.get, err = l.conn.PrepareContext(ctx, getSQL); err != nil {
		return nil, err
	}
	if l.add, err = l.conn.PrepareContext(ctx, insertSQL); err != nil {
		return nil, err
	}
	return l, nil
}

// close closes the connection. database/sql would keep it open as long as one of
// its statements is open.
func (l *log) close() error {
	return errors.Join(l.get.Close(), l.add.Close(), l.conn.Close(), l.db.Close())
}

// exec executes a statement. It takes no context, because a transaction that has
// begun is not interrupted.
func (l *log) exec(statement string, args ...any) error {
	_, err := l.conn.ExecContext(context.Background(), statement, args...)
	return err
}

// number returns the one number that query finds, or 0 if it finds none.
func (l *log) number(query string, args ...any) (int64, error) {
	var found sql.NullInt64
	err := l.conn.QueryRowContext(context.Background(), query, args...).Scan(&found)
	if err == sql.ErrNoRows {
		err = nil
	}
	return found.Int64, err
}

func (l *log) begin() error {
	l.before = l.marks
	return l.exec(`BEGIN IMMEDIATE`)
}

func (l *log) commit() error { return l.exec(`COMMIT`) }

// rollback undoes everything since begin.
func (l *log) rollback() {
	l.marks = l.before
	_ = l.exec(`ROLLBACK`) // fails if SQLite has already rolled back by itself
}

// start makes the log ready for writing, in one transaction. It returns the last
// revision, and the revision below which nothing can be read.
func (l *log) start() (last, compacted int64, err error) {
	if err := l.begin(); err != nil {
		return 0, 0, err
	}
	defer func() {
		if err != nil {
			l.rollback()
		}
	}()
	if last, err = l.recover(); err != nil {
		return 0, 0, err
	}
	if err := l.reserve(last); err != nil {
		return 0, 0, err
	}
	return last, l.swept, l.commit()
}

// recover brings the database into the state in which a start needs it, within a
// transaction of the caller, and returns the last revision.
//
// After a crash all revisions that were handed out count as compacted. Deferred
// and volatile changes may be lost, and a client that saw them has to list again.
// Each Lease gets a new revision, so that no client sees its revision go back.
func (l *log) recover() (last int64, err error) {
	last, err = l.number(`SELECT MAX(id) FROM kine`)
	if err != nil {
		return 0, err
	}
	sequence, err := l.number(`SELECT seq FROM sqlite_sequence WHERE name = 'kine'`)
	if err != nil {
		return 0, err
	}
	l.swept, err = l.number(`SELECT MAX(prev_revision) FROM kine WHERE name = ?`, compactKey)
	if err != nil {
		return 0, err
	}
	crashed := sequence > last
	last = max(last, sequence)
	if rows, err := l.number(`SELECT COUNT(*) FROM kine WHERE name = ?`, compactKey); err != nil {
		return 0, err
	} else if rows == 0 {
		last++
		if err := l.insert(version{Event: &server.Event{Create: true, KV: &server.KeyValue{Key: compactKey, ModRevision: last}}}); err != nil {
			return 0, err
		}
	}
	if !crashed {
		return last, nil
	}
	for l.swept < last {
		if err := l.sweep(last); err != nil {
			return 0, err
		}
	}
	return l.renewLeases(last)
}

// finish adds the rows of versions, of which the last has the revision last, and
// leaves the log as closed in order.
func (l *log) finish(versions []version, last int64) (err error) {
	if err := l.begin(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.rollback()
		}
	}()
	for _, v := range versions {
		if err := l.insert(v); err != nil {
			return err
		}
		if v.KV.ModRevision <= l.swept {
			// The sweep that would have deleted the superseded row is already
			// over.
			if err := l.exec(`DELETE FROM kine WHERE id = ?`, v.follows); err != nil {
				return err
			}
		}
	}
	if err := l.setReserved(last); err != nil {
		return err
	}
	return l.commit()
}

// renewLeases gives each Lease a new revision after last, and returns the last of
// these.
func (l *log) renewLeases(last int64) (int64, error) {
	rows, err := l.conn.QueryContext(context.Background(), fmt.Sprintf(listSQL, "value"), leasePrefix, leasePrefix[:len(leasePrefix)-1]+"0", last, -1)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var renewed []version
	for rows.Next() {
		kv, _, err := scanRow(rows)
		if err != nil {
			return 0, err
		}
		last++
		follows := kv.ModRevision
		kv.ModRevision = last
		renewed = append(renewed, version{Event: &server.Event{KV: kv}, follows: follows})
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, v := range renewed {
		if err := l.insert(v); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// reserve makes sure that the revisions up to last are reserved, and enough after
// them.
func (l *log) reserve(last int64) error {
	if l.reserved-last > reserveBlock/2 {
		return nil
	}
	return l.setReserved(last + reserveBlock)
}

func (l *log) setReserved(revision int64) error {
	if err := l.exec(`UPDATE sqlite_sequence SET seq = ? WHERE name = 'kine'`, revision); err != nil {
		return err
	}
	l.reserved = revision
	return nil
}

// insert adds the row of v.
func (l *log) insert(v version) error {
	_, err := l.add.Exec(v.KV.ModRevision, v.KV.Key, v.Create, v.Delete, v.KV.CreateRevision, v.follows, v.KV.Lease, v.KV.Value)
	return err
}

// sweep deletes rows that rows up to revision have superseded, and the deletions
// among those rows. It handles one batch at a time, in the order of the
// superseding rows.
func (l *log) sweep(revision int64) error {
	if revision <= l.swept {
		return nil
	}
	upTo, err := l.number(`SELECT id FROM kine WHERE id > ? AND id <= ? ORDER BY id LIMIT 1 OFFSET ?`, l.swept, revision, sweepBatch)
	if err != nil {
		return err
	}
	upTo = cmp.Or(upTo, revision)
	for _, statement := range []string{
		`DELETE FROM kine WHERE id IN (SELECT prev_revision FROM kine WHERE id > ? AND id <= ? AND prev_revision != 0 AND name != '` + compactKey + `')`,
		`DELETE FROM kine WHERE id > ? AND id <= ? AND deleted != 0`,
	} {
		if err := l.exec(statement, l.swept, upTo); err != nil {
			return err
		}
	}
	if err := l.exec(`UPDATE kine SET prev_revision = ? WHERE name = ?`, upTo, compactKey); err != nil {
		return err
	}
	l.swept = upTo
	return nil
}
