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

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
)

var _ datastore.Snapshotter = (*Datastore)(nil)

// Kind implements datastore.Snapshotter. What Save writes is the same for all
// databases: every object as it is, each a KeyValue of etcd's API
// (api/mvccpb/kv.proto) after its length as a varint, in no order.
func (d *Datastore) Kind() string { return "sql" }

// current are the objects as they are. The cluster's secrets and its token are not
// among them, which the next server to start gives (join.GiveStored): that may
// not be the servers' token any more.
const current = `SELECT id, name, created, create_revision, lease, value
	FROM kine JOIN (SELECT MAX(id) AS id FROM kine GROUP BY name) AS latest USING (id)
	WHERE deleted = 0 AND name <> '` + compactKey + `' AND name NOT IN ('` + join.StoredKey + `', '` + join.TokenKey + `')`

// Save implements datastore.Snapshotter, by one transaction that reads.
func (d *Datastore) Save(ctx context.Context, file string) (revision int64, err error) {
	err = d.connected(ctx, func(db *sql.DB) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		if err != nil {
			return err
		}
		// It has changed nothing.
		defer func() { _ = tx.Rollback() }()
		// The first statement decides of which moment all others are.
		if err := tx.QueryRowContext(ctx, head).Scan(&revision); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, current)
		if err != nil {
			return err
		}
		defer rows.Close()
		return writeObjects(file, rows)
	})
	return revision, err
}

// connected opens a single connection to the database and closes it. Its errors
// say what to do.
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

// ownError is an error that is not the database's.
type ownError struct{ error }

// Unwrap lets errors.Is find the cause.
func (e ownError) Unwrap() error { return e.error }

func writeObjects(path string, rows *sql.Rows) (err error) {
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
	for rows.Next() {
		var kv mvccpb.KeyValue
		var created bool
		if err := rows.Scan(&kv.ModRevision, &kv.Key, &created, &kv.CreateRevision, &kv.Lease, &kv.Value); err != nil {
			return err
		}
		if created {
			kv.CreateRevision = kv.ModRevision
		}
		text, err := kv.Marshal()
		if err != nil {
			return ownError{fmt.Errorf("encode %s: %w", kv.Key, err)}
		}
		if _, err := out.Write(append(binary.AppendUvarint(nil, uint64(len(text))), text...)); err != nil {
			return ownError{datadir.Explain(err)}
		}
	}
	// Without this a dump that broke off would be a shorter one.
	if err := rows.Err(); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return ownError{datadir.Explain(err)}
	}
	return nil
}

// readObjects hands do what writeObjects wrote.
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
			err = fmt.Errorf("an object of %d bytes", length)
		}
		if err == nil {
			text := make([]byte, length)
			if _, err = io.ReadFull(in, text); err == nil {
				err = kv.Unmarshal(text)
			}
		}
		if err != nil {
			return ownError{fmt.Errorf("%s has no objects of a database in it: %w", path, err)}
		}
		if err := do(&kv); err != nil {
			return err
		}
	}
}

// maxObject is more than an object can have, in bytes: the API server and kine's
// table both take less.
const maxObject = 32 << 20
