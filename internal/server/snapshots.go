package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/snapshot"
)

// snapshotConfig is what snapshots need of a server, whether it runs or not.
func snapshotConfig(cfg *config.Config, store datastore.Snapshotter) snapshot.Config {
	dir := datadir.Dir(cfg.DataDir)
	return snapshot.Config{
		Elsewhere:  checkSaved(cfg, dir),
		Dir:        dir,
		Settings:   cfg.Server.Snapshots,
		Encryption: cfg.Server.APIServerArg("encryption-provider-config"),
		NodeName:   cfg.Node.NodeName,
		Store:      store,
		Socket:     datadir.SnapshotSocket,
	}
}

// checkSaved says who saves the API's objects if kedge does not.
func checkSaved(cfg *config.Config, dir datadir.Dir) error {
	if servers := cfg.Server.APIServerArg("etcd-servers"); servers != "" {
		return fmt.Errorf("the API's objects are in etcd at %s, not in kedge's datastore: save and restore them there, by `etcdctl snapshot`", servers)
	}
	if cfg.Server.Datastore.Endpoint != "" {
		return errors.New("the API's objects are in the datastore of datastore-endpoint: save and restore them there, by its own tools")
	}
	if usesEtcd(cfg, dir) {
		return errors.New("the API's objects are in etcd: save them by `etcdctl snapshot save`, and restore them by `etcdutl snapshot restore`")
	}
	return nil
}

// Restore replaces what a server that does not run has stored by a snapshot,
// which is a file or the name of one.
func Restore(ctx context.Context, cfg *config.Config, file string) (*snapshot.Restored, error) {
	return snapshot.Restore(ctx, snapshotConfig(cfg, newSQLite(datadir.Dir(cfg.DataDir))), file, cfg.Token)
}

// ListSnapshots lists the snapshots of a server that does not run.
func ListSnapshots(ctx context.Context, cfg *config.Config) ([]snapshot.File, error) {
	return snapshot.List(ctx, snapshotConfig(cfg, newSQLite(datadir.Dir(cfg.DataDir))))
}
