package server

import (
	"context"

	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kine"
	"github.com/kedge-dev/kedge/internal/snapshot"
)

// store is a server's datastore.
type store interface {
	datastore.Datastore
	datastore.Snapshotter
}

// newDatastore returns the datastore of a server, whether it is to run or not.
func newDatastore(dir datadir.Dir) store {
	return kine.New(kine.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

// snapshotConfig is what snapshots need of a server, whether it runs or not.
func snapshotConfig(cfg *config.Config, store store) snapshot.Config {
	return snapshot.Config{
		Dir:        datadir.Dir(cfg.DataDir),
		Settings:   cfg.Server.Snapshots,
		Encryption: cfg.Server.EncryptionConfig(),
		NodeName:   cfg.Node.NodeName,
		Store:      store,
		Socket:     datadir.SnapshotSocket,
	}
}

// Restore replaces what a server that does not run has stored by a snapshot,
// which is a file or the name of one.
func Restore(ctx context.Context, cfg *config.Config, file string) (*snapshot.Restored, error) {
	return snapshot.Restore(ctx, snapshotConfig(cfg, newDatastore(datadir.Dir(cfg.DataDir))), file, cfg.Token)
}

// ListSnapshots lists the snapshots of a server that does not run.
func ListSnapshots(ctx context.Context, cfg *config.Config) ([]snapshot.File, error) {
	return snapshot.List(ctx, snapshotConfig(cfg, newDatastore(datadir.Dir(cfg.DataDir))))
}
