package server

import (
	"cmp"
	"path"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/datastore"
)

// newEncryption returns what encrypts the Secrets of a server with an API server.
func newEncryption(cfg *config.Config, node host.Node, certificates *pki.Server, store datastore.Datastore) *encryption.Encryption {
	return encryption.New(encryption.Config{
		KeyFile:   certificates.EncryptionKeyFile,
		NewClient: func() (*clientv3.Client, error) { return datastore.NewClient(store.Endpoint()) },
		Prefix:    path.Join("/", cmp.Or(cfg.Server.APIServerArg("etcd-prefix"), "registry")),
		Address:   advertiseAddress(cfg.Server, node).String(),
		Shared:    store.Endpoint().Shared,
		Enabled:   cfg.Server.SecretsEncryption,
		Theirs:    encryptedByUser(&cfg.Server),
		Socket:    datadir.EncryptionSocket,
	})
}

// encryptedByUser says by what arguments of the API server the user has taken
// encryption over, empty if kedge does it.
func encryptedByUser(cfg *config.Server) string {
	switch {
	case cfg.APIServerArg("encryption-provider-config") != "":
		return "kube-apiserver-arg has an encryption-provider-config, by which the API server does it"
	case cfg.APIServerArg("etcd-servers") != "" || cfg.APIServerArg("etcd-servers-overrides") != "":
		return "kube-apiserver-arg has etcd-servers, so that objects are not where the keys would be; encryption-provider-config is for that"
	}
	return ""
}

// newEncryptionKeeper makes what completes changes of the keys run where the controllers do.
func newEncryptionKeeper(keys *encryption.Encryption, api *controlplane.APIServer, leader *election.Election) component.Component {
	return led("encryption-keeper", leader, encryption.NewKeeper(keys, api.RequestTimeout))
}
