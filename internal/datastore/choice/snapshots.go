package choice

import (
	"context"
	"errors"
	"fmt"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

// Snapshots returns the configuration for the snapshots of a server, whether it
// runs or not.
func Snapshots(cfg *config.Config, store datastore.Snapshotter) snapshot.Config {
	return snapshot.Config{
		Elsewhere:  checkSaved(cfg),
		Dir:        datadir.Dir(cfg.DataDir),
		Settings:   cfg.Server.Snapshots,
		Encryption: cfg.Server.APIServerArg("encryption-provider-config"),
		NodeName:   cfg.Node.NodeName,
		Store:      store,
	}
}

// checkSaved returns an error that says where the API's objects are saved, if
// kedge does not save them.
func checkSaved(cfg *config.Config) error {
	if servers := cfg.Server.APIServerArg("etcd-servers"); servers != "" {
		return fmt.Errorf("the API's objects are in etcd at %s, not in kedge's datastore: save them with `etcdctl snapshot save`, and restore them with `etcdutl snapshot restore`", servers)
	}
	if cfg.Server.Datastore.IsEtcd() {
		return errors.New("the API's objects are in the etcd of datastore-endpoint, which kedge does not save: " +
			"save them with `etcdctl snapshot save`, and restore them with `etcdutl snapshot restore`")
	}
	if cfg.Server.DisableEtcd {
		return errors.New("this server runs no etcd (disable-etcd), and the API's objects are in the etcd of other servers: run this command on one of those")
	}
	return nil
}

// stored returns the datastore to restore on a server that does not run. others
// says what to do on the other servers after the restore. The store is nil if
// kedge cannot restore this datastore.
func stored(cfg *config.Config, dir datadir.Dir) (store datastore.Snapshotter, others string, err error) {
	switch {
	case cfg.Server.Datastore.Endpoint != "":
		store, err := NewExternal(cfg.Server.Datastore)
		saved, _ := store.(datastore.Snapshotter)
		return saved, "The other servers that use this database must not run yet: start them after this one.", err
	case UsesEtcd(cfg, dir) && !KeepsSQLite(dir):
		node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
		if err != nil {
			return nil, "", err
		}
		member := etcd.New(etcd.Config{Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Args: cfg.Server.EtcdArgs})
		return member, joinAnew(cfg, dir, node), nil
	}
	return newSQLite(dir), "", nil
}

// Resume completes a restore that was interrupted.
func Resume(ctx context.Context, cfg *config.Config, dir datadir.Dir) error {
	store, _, err := stored(cfg, dir)
	if err != nil {
		return err
	}
	return snapshot.Resume(ctx, dir, store)
}

// Restore replaces the stored objects of a server that does not run by those of a
// snapshot. file is a file's path or the name of a snapshot.
func Restore(ctx context.Context, cfg *config.Config, file string) (*snapshot.Restored, error) {
	store, others, err := stored(cfg, datadir.Dir(cfg.DataDir))
	if err != nil {
		return nil, err
	}
	saving := Snapshots(cfg, store)
	saving.Others = others
	return snapshot.Restore(ctx, saving, file, cfg.Token)
}

// ListSnapshots lists the snapshots of a server that does not run.
func ListSnapshots(ctx context.Context, cfg *config.Config) ([]snapshot.File, error) {
	return snapshot.List(ctx, Snapshots(cfg, nil))
}
