package server

import (
	"context"
	"errors"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/database"
	"github.com/kedge-dev/kedge/internal/datastore/external"
)

// newExternal returns the datastore of the user's own.
func newExternal(cfg config.Datastore) (datastore.Datastore, error) {
	files := datastore.TLS{CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
	if cfg.IsEtcd() {
		return external.New(cfg.Endpoint, files)
	}
	return database.New(database.Config{Endpoint: cfg.Endpoint, TLS: files, Socket: datadir.DatastoreSocket})
}

// shareSecrets makes the servers with one datastore of the user's one cluster: what
// they must have alike is in there, and this server takes it, or makes it by
// establish and gives it. It runs the datastore for that, and waits for one that
// cannot be reached.
func shareSecrets(ctx context.Context, store datastore.Datastore, dir datadir.Dir, token string, establish func() error) error {
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
		client, err := newClient(store)
		if err != nil {
			return err
		}
		defer client.Close()
		found, err := bootstrap.TakeStored(ctx, client.KV, dir, token)
		if err != nil {
			return err
		}
		if err := establish(); err != nil || found {
			return err
		}
		return bootstrap.GiveStored(ctx, client.KV, dir)
	}()
	stop()
	return errors.Join(err, <-ended)
}

// newClient returns a client of a datastore that runs.
func newClient(store datastore.Datastore) (*clientv3.Client, error) {
	endpoint := store.Endpoint()
	if endpoint.NewClient != nil {
		return endpoint.NewClient().Client, nil
	}
	tls, err := datastore.TLS{CAFile: endpoint.CAFile, CertFile: endpoint.CertFile, KeyFile: endpoint.KeyFile}.Config()
	if err != nil {
		return nil, err
	}
	return clientv3.New(clientv3.Config{Endpoints: strings.Split(endpoint.URL, ","), TLS: tls, Logger: zap.NewNop()})
}
