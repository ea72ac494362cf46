package server

import (
	"fmt"

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

// checkExternal refuses a datastore of the user's own where there is one of
// kedge's: this node's pods would be those of the other cluster.
func checkExternal(dir datadir.Dir, own bool) error {
	if !own {
		return nil
	}
	return fmt.Errorf("this server keeps its state in %s, and does not take it along to datastore-endpoint: "+
		"leave datastore-endpoint out to go on with it, or move that folder away to leave that cluster", dir.ServerDB())
}
