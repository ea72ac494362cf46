package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
)

// Import makes a new database of the keys that another datastore exports, with their
// revisions. export must call each only with present keys, one of each name, in the order
// of their revisions. It returns the current revision. All revisions up to that count as
// compacted. If Import fails, the database is of no use.
func (d *Datastore) Import(ctx context.Context, export datastore.Export) (err error) {
	file := filepath.Join(d.config.Dir, stateFile)
	var told error // the error of export
	defer func() {
		if err != nil && told == nil && ctx.Err() == nil {
			err = fmt.Errorf("write database: %w", explain(file, err))
		}
	}()
	if err := os.MkdirAll(d.config.Dir, 0o700); err != nil {
		return err
	}
	if err := makeDatabase(ctx, file, d.version); err != nil {
		return err
	}
	log, err := openLog(ctx, file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	if err := log.begin(); err != nil {
		return err
	}
	large := sizes.NewObjects(sizes.Limit)
	var revision int64
	revision, _, told = export(ctx, func(e *mvccpb.Event) error {
		large.Note(e)
		v := version{Event: &server.Event{
			Create: e.Kv.CreateRevision == e.Kv.ModRevision,
			KV: &server.KeyValue{
				Key: string(e.Kv.Key), Value: e.Kv.Value, Lease: e.Kv.Lease,
				CreateRevision: e.Kv.CreateRevision, ModRevision: e.Kv.ModRevision,
			},
		}}
		if !v.Create {
			// The row before it is compacted, but there was one.
			v.follows = e.Kv.CreateRevision
		}
		return log.insert(v)
	})
	if told == nil {
		told = large.Err("Divide or delete them where they are now, or set cluster-init: true and etcd-arg: [max-request-bytes=%d]")
	}
	if told != nil {
		log.rollback()
		return told
	}
	// The last row says what is compacted, so the database looks as if it had been
	// closed in order.
	mark := version{Event: &server.Event{Create: true, KV: &server.KeyValue{Key: compactKey, ModRevision: revision + 1}}, follows: revision}
	if err := log.insert(mark); err != nil {
		log.rollback()
		return err
	}
	return log.commit()
}

// Convert implements datastore.Snapshotter.
func (d *Datastore) Convert(ctx context.Context, export datastore.Export, file string) error {
	folder := file + ".converting"
	defer os.RemoveAll(folder)
	made := &Datastore{config: Config{Dir: folder}, version: d.version}
	if err := made.Import(ctx, export); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(folder, stateFile), file); err != nil {
		return fmt.Errorf("name the converted database: %w", datadir.Explain(err))
	}
	return nil
}
