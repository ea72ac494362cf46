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

// etcdCompactKey is where the API server has in etcd what is at
// apiserverCompactKey here.
const etcdCompactKey = "compact_rev_key"

// Export calls each with every change that could still be asked for if the
// datastore were started now, in the order of revisions, but without versions,
// which nobody counts here. It returns the current revision, and the one below
// which nothing can be asked for. The state stays as it is: what a start does after
// a crash is rolled back. Nothing runs on it.
func (d *Datastore) Export(ctx context.Context, each func(*mvccpb.Event) error) (revision, compacted int64, err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	var told error // each's
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

// event is a row as etcd would have it.
func event(kv *server.KeyValue, deleted bool) *mvccpb.Event {
	if deleted {
		return &mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(kv.Key), ModRevision: kv.ModRevision}}
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

// Retire adds suffix to the database's name, and returns that: it is no longer the
// state, and only kept. It is called again if it was interrupted, and does nothing,
// and returns nothing, where there is no database.
func (d *Datastore) Retire(suffix string) (kept string, err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	// What a crash has left beside it belongs to it, and goes first: while the
	// database is there, it is not done.
	for _, part := range parts {
		err := os.Rename(file+part, file+suffix+part)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("put SQLite database aside: %w", datadir.Explain(err))
		}
		kept = file + suffix
	}
	if kept != "" {
		err = syncFolders(d.config.Dir)
	}
	return kept, err
}
