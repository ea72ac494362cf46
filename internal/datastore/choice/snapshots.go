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

// Snapshots is what snapshots need of a server, whether it runs or not.
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

// checkSaved says who saves the API's objects if kedge does not.
func checkSaved(cfg *config.Config) error {
	if servers := cfg.Server.APIServerArg("etcd-servers"); servers != "" {
		return fmt.Errorf("the API's objects are in etcd at %s, not in kedge's datastore: save and restore them there, by `etcdctl snapshot`", servers)
	}
	if cfg.Server.Datastore.IsEtcd() {
		return errors.New("the API's objects are in an etcd of your own, that of datastore-endpoint: " +
			"save them by `etcdctl snapshot save`, and restore them by `etcdutl snapshot restore`")
	}
	if cfg.Server.DisableEtcd {
		return errors.New("this server has disable-etcd, and the API's objects are in the etcd of other servers: save and restore them there")
	}
	return nil
}

// stored returns the datastore of a server that does not run, as it is restored,
// and what is to be done on other servers then. It is nil if kedge does not
// restore it.
func stored(cfg *config.Config, dir datadir.Dir) (store datastore.Snapshotter, others string, err error) {
	switch {
	case cfg.Server.Datastore.Endpoint != "":
		store, err := NewExternal(cfg.Server.Datastore)
		saved, _ := store.(datastore.Snapshotter)
		return saved, "The other servers of this database must not run yet: start them after this one.", err
	case UsesEtcd(cfg, dir) && !KeepsSQLite(dir):
		node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
		if err != nil {
			return nil, "", err
		}
		member := etcd.New(etcd.Config{Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String()})
		return member, joinAnew(cfg, dir, node), nil
	}
	return newSQLite(dir), "", nil
}

// Resume ends a restore that was interrupted.
func Resume(ctx context.Context, cfg *config.Config, dir datadir.Dir) error {
	store, _, err := stored(cfg, dir)
	if err != nil {
		return err
	}
	return snapshot.Resume(ctx, dir, store)
}

// Restore replaces what a server that does not run has stored by a snapshot,
// which is a file or the name of one.
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
