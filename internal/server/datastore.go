package server

import (
	"context"
	"fmt"

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
	var elsewhere error
	if servers := cfg.Server.APIServerArg("etcd-servers"); servers != "" {
		elsewhere = fmt.Errorf("the API's objects are in etcd at %s, not in kedge's datastore: save and restore them there, by `etcdctl snapshot`", servers)
	}
	return snapshot.Config{
		Elsewhere:  elsewhere,
		Dir:        datadir.Dir(cfg.DataDir),
		Settings:   cfg.Server.Snapshots,
		Encryption: cfg.Server.APIServerArg("encryption-provider-config"),
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
