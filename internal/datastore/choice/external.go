package choice

import (
	"context"
	"errors"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcdremote"
	"github.com/kedge-dev/kedge/internal/datastore/sqldb"
)

// NewExternal returns the datastore of the user that cfg names. It connects to
// nothing yet.
func NewExternal(cfg config.Datastore) (datastore.Datastore, error) {
	files := datastore.TLS{CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if cfg.IsEtcd() {
		return etcdremote.New(etcdremote.Config{
			Endpoints: cfg.Endpoint,
			Files:     files,
			What:      "etcd at " + cfg.Endpoint,
			Advice: "that it runs and has a leader (`etcdctl endpoint status`), the hosts and ports in datastore-endpoint, " +
				"and, for TLS, datastore-cafile, datastore-certfile and datastore-keyfile",
		})
	}
	return sqldb.New(sqldb.Config{Endpoint: cfg.Endpoint, TLS: files, Socket: datadir.DatastoreSocket})
}

// ShareSecrets makes all servers that use one datastore of the user one cluster.
// The secrets that these servers must have in common are in that datastore. If they
// are there, this server takes them. If not, it creates them with establish and
// stores them. ShareSecrets runs the datastore meanwhile, and waits until the
// datastore can be reached.
func ShareSecrets(ctx context.Context, store datastore.Datastore, dir datadir.Dir, token string, establish func() error) error {
	running, stop := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- store.Run(running, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		stop()
		return errors.Join(err, ctx.Err())
	}
	err := func() error {
		client, err := datastore.NewClient(store.Endpoint())
		if err != nil {
			return err
		}
		defer client.Close()
		found, err := join.TakeStored(ctx, client.KV, dir, token)
		if err != nil {
			return err
		}
		if err := establish(); err != nil {
			return err
		}
		// With this file, a start without datastore-endpoint fails instead of
		// beginning another cluster.
		if err := datadir.WriteFile(dir.DatastoreEndpoint(), []byte("The state is in the datastore of datastore-endpoint.\n"), 0o600); err != nil {
			return err
		}
		if found {
			return nil
		}
		return join.GiveStored(ctx, client.KV, dir)
	}()
	stop()
	return errors.Join(err, <-ended)
}
