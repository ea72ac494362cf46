package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// etcdCompactKey is the name in etcd of the key that is apiserverCompactKey here.
const etcdCompactKey = "compact_rev_key"

// Export calls each with every change that could be read if the datastore were
// started now, in the order of revisions. The changes have no versions, which are
// not counted here. It returns the current revision, and the revision below which
// nothing can be read. The database is not changed: what a start does after a crash
// is rolled back. Nothing else may use the database meanwhile.
func (d *Datastore) Export(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	var told error // the error of each
	defer func() {
		if err != nil && told == nil && ctx.Err() == nil {
			err = fmt.Errorf("read database: %w", explain(file, err))
		}
	}()
	checked, err := prepare(ctx, file, d.version)
	if err != nil {
		return 0, 0, err
	}
	log, err := openLog(ctx, file)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	if !checked {
		if err := quickCheck(ctx, log.conn, file); err != nil {
			return 0, 0, err
		}
	}
	if err := log.begin(); err != nil {
		return 0, 0, err
	}
	defer log.rollback()
	if revision, err = log.recover(); err != nil {
		return 0, 0, err
	}
	history, err := log.conn.PrepareContext(ctx, historySQL)
	if err != nil {
		return 0, 0, err
	}
	defer history.Close()
	err = query(ctx, history, func(rows *sql.Rows) error {
		kv, deleted, err := scanRow(rows)
		if err != nil {
			return err
		}
		told = each(event(kv, deleted))
		return told
	})
	return revision, log.swept, err
}

// event returns a row in etcd's form.
func event(kv *server.KeyValue, deleted bool) *mvccpb.Event {
	if deleted {
		return &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(kv.Key), ModRevision: kv.ModRevision}}
	}
	key, value := kv.Key, kv.Value
	if key == apiserverCompactKey {
		key = etcdCompactKey
		_, value = server.DecodeVersion(value)
	}
	return &mvccpb.Event{Kv: &mvccpb.KeyValue{
		Key: []byte(key), Value: value, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}}
}

// Retire adds suffix to the database's name and returns the new name. The database
// is then only a copy, no longer the state. If Retire was interrupted, it is called
// again. Where there is no database, it does nothing and returns an empty name.
func (d *Datastore) Retire(suffix string) (kept string, err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	// The log and other files that a crash left belong to the database, and are
	// renamed first: as long as the database itself has its name, Retire is not
	// done.
	for _, part := range parts {
		err := os.Rename(file+part, file+suffix+part)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("rename SQLite database: %w", datadir.Explain(err))
		}
		kept = file + suffix
	}
	if kept != "" {
		err = syncFolders(d.config.Dir)
	}
	return kept, err
}
