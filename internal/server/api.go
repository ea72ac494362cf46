package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"k8s.io/client-go/informers"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/controlplane/nodescope"
)

// api is the cluster's API for the parts of a server: the API server in this process,
// or those of other servers.
type api interface {
	component.Component
	http.Handler
	agent.Clients
	// Informers is an objectcache.Source.
	Informers(ctx context.Context) (informers.SharedInformerFactory, error)
	// Certificate returns a certificate of the user's own for a name, if any.
	Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// newAPI returns what is wrong with the user's arguments too.
func newAPI(cfg *config.Config, node host.Node, listener net.Listener, clock *pki.Clock, certificates *pki.Server, store *state, registry *registration.Registry, tunnels *tunnel.Server, keys *encryption.Encryption) (api, error) {
	if cfg.Server.DisableAPIServer {
		return newRemoteAPI(cfg, node, certificates, store), nil
	}
	egress := controlplane.Egress{Tunnels: tunnels, PodCIDRs: agent.OwnPodCIDRs(cfg.Cluster), Owner: registry.Owner}
	if !cfg.Server.DisableAgent {
		egress.NodeName, egress.NodeIPs = node.Name, node.IPs
	}
	endpoint := store.Endpoint()
	return controlplane.NewAPIServer(controlplane.APIServerConfig{
		Addr:                listener.Addr(),
		AdvertiseAddress:    advertiseAddress(cfg.Server, node),
		Cluster:             cfg.Cluster,
		Dir:                 datadir.Dir(cfg.DataDir),
		PodSecurityStandard: cfg.Server.PodSecurityStandard,
		DatastoreURL:        endpoint.URL,
		DatastoreCAFile:     endpoint.CAFile,
		DatastoreCertFile:   endpoint.CertFile,
		DatastoreKeyFile:    endpoint.KeyFile,
		DialDatastore:       endpoint.Dial,
		SharedDatastore:     endpoint.Shared,
		NewDatastoreClient:  endpoint.NewClient,
		Files:               certificates.Files,
		Now:                 clock.Now,
		Egress:              egress,
		Transformers:        keys,
		Args:                cfg.Server.KubeAPIServerArgs,
		Scopes: nodescope.Scopes{
			{Resource: "persistentvolumes"}:                                   localstorage.TopologyKey,
			{Resource: "persistentvolumeclaims"}:                              localstorage.TopologyKey,
			{Group: snapshotv1.GroupName, Resource: "volumesnapshotcontents"}: utils.VolumeSnapshotContentManagedByLabel,
		},
	})
}

// otherAPIServers returns who knows the servers with an API, if this one has none.
func otherAPIServers(api api) func() []string {
	remote, elsewhere := api.(*remoteAPI)
	if !elsewhere {
		return nil
	}
	return func() []string {
		servers, _ := remote.servers.Servers()
		return servers
	}
}
