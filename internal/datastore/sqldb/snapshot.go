package sqldb

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Datastore)(nil)

// Kind implements datastore.Snapshotter. Save writes the same format for all
// databases: the present value of every object, as a KeyValue of etcd's API
// (api/mvccpb/kv.proto) after its length as a varint, in no order.
func (d *Datastore) Kind() string { return "sql" }

// current selects the present objects. It leaves out the cluster's secrets and its
// token, which the next server to start stores again (join.GiveStored): at that
// time the servers' token may be another.
const current = `SELECT id, name, created, COALESCE(create_revision, 0), lease, value
	FROM kine JOIN (SELECT MAX(id) AS id FROM kine GROUP BY name) AS latest USING (id)
	WHERE deleted = 0 AND name <> '` + compactKey + `' AND name NOT IN ('` + join.StoredKey + `', '` + join.TokenKey + `')`

// Save implements datastore.Snapshotter. It reads everything in one transaction.
func (d *Datastore) Save(ctx context.Context, file string) (revision int64, err error) {
	err = d.connected(ctx, func(db *sql.DB) error {
		revision, err = readAt(ctx, db, current, func(rows *sql.Rows) error { return writeObjects(file, rows) })
		return err
	})
	return revision, err
}

// readAt calls do with the rows of a query, and returns the revision of the moment at which they were so.
func readAt(ctx context.Context, db *sql.DB, query string, do func(*sql.Rows) error) (revision int64, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return 0, err
	}
	// The transaction has changed nothing, so the result does not matter.
	defer func() { _ = tx.Rollback() }()
	// The first statement determines the moment that all others see.
	if err := tx.QueryRowContext(ctx, head).Scan(&revision); err != nil {
		return 0, err
	}
	rows, err := tx.QueryContext(ctx, query)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	return revision, do(rows)
}

// connected calls do with a database handle of a single connection, and closes
// it. Its errors say what the user can do.
func (d *Datastore) connected(ctx context.Context, do func(*sql.DB) error) error {
	db := sql.OpenDB(d.target.connector)
	db.SetMaxOpenConns(1)
	err := do(db)
	var here ownError
	if err != nil && !errors.As(err, &here) {
		err, _ = d.target.explain(err)
	}
	return errors.Join(err, db.Close())
}

// ownError is an error of this package, not of the database. It is not explained
// again.
type ownError struct{ error }

// Unwrap lets errors.Is find the cause.
func (e ownError) Unwrap() error { return e.error }

// Export calls each with every present object, in the order of revisions, as package
// etcd's Export says. Older values cannot be read. It fails if anybody else uses the
// database.
func (d *Datastore) Export(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
	err = d.connected(ctx, func(db *sql.DB) error {
		if err := d.alone(ctx, db); err != nil {
			return err
		}
		revision, err = readAt(ctx, db, current+" ORDER BY id", func(rows *sql.Rows) error {
			for rows.Next() {
				kv, err := scanObject(rows)
				if err != nil {
					return err
				}
				if err := each(&mvccpb.Event{Kv: kv}); err != nil {
					return ownError{err}
				}
			}
			return rows.Err()
		})
		return err
	})
	return revision, revision, err
}

// scanObject returns a row of current.
func scanObject(rows *sql.Rows) (*mvccpb.KeyValue, error) {
	var kv mvccpb.KeyValue
	var created bool
	err := rows.Scan(&kv.ModRevision, &kv.Key, &created, &kv.CreateRevision, &kv.Lease, &kv.Value)
	if created {
		kv.CreateRevision = kv.ModRevision
	}
	return &kv, err
}

// writeObjects writes the objects of rows to a file.
func writeObjects(path string, rows *sql.Rows) error {
	return writeFile(path, func(write func(*mvccpb.KeyValue) error) error {
		for rows.Next() {
			kv, err := scanObject(rows)
			if err != nil {
				return err
			}
			if err := write(kv); err != nil {
				return err
			}
		}
		// Without this check, a dump that broke off would pass for a shorter one.
		return rows.Err()
	})
}

// Convert implements datastore.Snapshotter.
func (d *Datastore) Convert(ctx context.Context, export datastore.Export, file string) error {
	return writeFile(file, func(write func(*mvccpb.KeyValue) error) error {
		_, _, err := export(ctx, func(e *mvccpb.Event) error { return write(e.Kv) })
		return err
	})
}

// writeFile makes a file of the objects that do writes.
func writeFile(path string, do func(write func(*mvccpb.KeyValue) error) error) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return ownError{datadir.Explain(err)}
	}
	defer func() {
		if failed := file.Close(); err == nil && failed != nil {
			err = ownError{datadir.Explain(failed)}
		}
	}()
	out := bufio.NewWriter(file)
	err = do(func(kv *mvccpb.KeyValue) error {
		text, err := proto.Marshal(kv)
		if err != nil {
			return ownError{fmt.Errorf("encode %s: %w", kv.Key, err)}
		}
		if _, err := out.Write(append(binary.AppendUvarint(nil, uint64(len(text))), text...)); err != nil {
			return ownError{datadir.Explain(err)}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return ownError{datadir.Explain(err)}
	}
	return nil
}

// readObjects hands each object that writeObjects wrote to do.
func readObjects(path string, do func(*mvccpb.KeyValue) error) error {
	file, err := os.Open(path)
	if err != nil {
		return ownError{err}
	}
	defer file.Close()
	in := bufio.NewReader(file)
	for {
		length, err := binary.ReadUvarint(in)
		if err == io.EOF {
			return nil
		}
		var kv mvccpb.KeyValue
		if err == nil && length > maxObject {
			err = fmt.Errorf("it has an object of %d bytes", length)
		}
		if err == nil {
			text := make([]byte, length)
			if _, err = io.ReadFull(in, text); err == nil {
				err = proto.Unmarshal(text, &kv)
			}
		}
		if err != nil {
			return ownError{fmt.Errorf("%s is not a dump of a database: %w", path, err)}
		}
		if err := do(&kv); err != nil {
			return err
		}
	}
}

// maxObject is larger than any object, in bytes: the API server and kine's table
// accept less.
const maxObject = 32 << 20
