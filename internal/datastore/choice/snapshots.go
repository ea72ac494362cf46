package choice

import (
	"context"
	"errors"
	"fmt"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/backup/comeback"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

// Snapshots returns the configuration for the snapshots of a server, whether it
// runs or not.
func (c Choice) Snapshots(store datastore.Snapshotter) snapshot.Config {
	return snapshot.Config{
		Elsewhere:  c.checkSaved(),
		Dir:        c.Dir,
		Settings:   c.Server.Snapshots,
		Encryption: c.Server.APIServerArg("encryption-provider-config"),
		NodeName:   c.NodeName,
		Store:      store,
	}
}

// checkSaved returns an error that says where the API's objects are saved, if
// kedge does not save them.
func (c Choice) checkSaved() error {
	if servers := c.Server.APIServerArg("etcd-servers"); servers != "" {
		return fmt.Errorf("the API's objects are in etcd at %s, not in kedge's datastore: save them with `etcdctl snapshot save`, and restore them with `etcdutl snapshot restore`", servers)
	}
	if c.Server.Datastore.IsEtcd() {
		return errors.New("the API's objects are in the etcd of datastore-endpoint, which kedge does not save: " +
			"save them with `etcdctl snapshot save`, and restore them with `etcdutl snapshot restore`")
	}
	if c.Server.DisableEtcd {
		return errors.New("this server runs no etcd (disable-etcd), and the API's objects are in the etcd of other servers: run this command on one of those")
	}
	return nil
}

// stored returns the datastore to restore on a server that does not run. others
// says what to do on the other servers after the restore. The store is nil if
// kedge cannot restore this datastore. node returns this server's node, which only etcd needs.
func (c Choice) stored(node func() (host.Node, error)) (store datastore.Snapshotter, others string, err error) {
	switch {
	case c.Server.Datastore.Endpoint != "":
		store, err := NewExternal(c.Server.Datastore)
		saved, _ := store.(datastore.Snapshotter)
		return saved, "The other servers that use this database must not run yet: start them after this one.", err
	case c.UsesEtcd() && !KeepsSQLite(c.Dir):
		node, err := node()
		if err != nil {
			return nil, "", err
		}
		member := etcd.New(etcd.Config{Dir: c.Dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Args: c.Server.EtcdArgs})
		return member, c.joinAnew(node), nil
	}
	return newSQLite(c.Dir), "", nil
}

// Resume completes a restore that was interrupted.
func (c Choice) Resume(ctx context.Context, node host.Node) error {
	store, _, err := c.stored(func() (host.Node, error) { return node, nil })
	if err != nil {
		return err
	}
	return snapshot.Resume(ctx, c.Dir, store)
}

// Restore replaces the stored objects of a server that does not run by those of a
// snapshot. file is a file's path or the name of a snapshot.
func Restore(ctx context.Context, cfg *config.Config, file string) (*snapshot.Restored, error) {
	saving, err := restoring(cfg)
	if err != nil {
		return nil, err
	}
	return snapshot.Restore(ctx, saving, file, cfg.Token)
}

// RestoreState replaces the stored objects of a server that does not run by those of a backup.
func RestoreState(ctx context.Context, cfg *config.Config, state *comeback.State, volumes []*comeback.Volume) (*snapshot.Restored, error) {
	saving, err := restoring(cfg)
	if err != nil {
		return nil, err
	}
	return state.Restore(ctx, saving, volumes)
}

// CopyState makes a server that does not run of the state of a backup. The server has no part in the backup.
func CopyState(ctx context.Context, cfg *config.Config, state *comeback.State) error {
	saving, err := restoring(cfg)
	if err != nil {
		return err
	}
	return state.Copy(ctx, saving)
}

// restoring returns the configuration for a restore.
func restoring(cfg *config.Config) (snapshot.Config, error) {
	c := Of(cfg)
	store, others, err := c.stored(func() (host.Node, error) { return host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs()) })
	if err != nil {
		return snapshot.Config{}, err
	}
	saving := c.Snapshots(store)
	saving.Others = others
	return saving, nil
}

// ListSnapshots lists the snapshots of a server that does not run.
func ListSnapshots(ctx context.Context, cfg *config.Config) ([]snapshot.File, error) {
	return snapshot.List(ctx, Of(cfg).Snapshots(nil))
}
