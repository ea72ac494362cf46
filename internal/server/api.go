package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"path"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/informers"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/remoteapi"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/controlplane/lean"
	"github.com/kedge-dev/kedge/internal/controlplane/nodescope"
	"github.com/kedge-dev/kedge/internal/controlplane/resourcemetrics"
)

// api is the cluster's API for the parts of a server: the API server in this process, or
// the API servers on other servers.
type api struct {
	apiComponent
	// server and keys are set with roles.api. keys encrypt its Secrets.
	server *apiserver.Server
	keys   *encryption.Encryption
	// remote and others, HOST:PORT of the servers with an API, are set without roles.api.
	remote tunnel.Servers
	// reconnect is agent.API.Reconnect.
	reconnect func(user string, began time.Time)
	others    func() []string
}

// apiComponent is what both kinds of API have in common.
type apiComponent interface {
	component.Component
	http.Handler
	agent.Clients
	// Informers is an objectcache.Source.
	Informers(ctx context.Context) (informers.SharedInformerFactory, error)
	// Certificate returns a certificate that the user brought for a name, or nil.
	Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// newAPI makes the API.
func (s *server) newAPI(listener net.Listener) {
	if !s.roles.api {
		remote := remoteapi.NewElsewhere(remoteapi.Config{
			NodeName: s.node.Name,
			File:     s.dir.Servers(),
			URL:      "https://" + s.cfg.Server.PublicAddress(s.node.IPs[0]),
			Port:     s.cfg.Server.HTTPSListenPort,
			TLS:      s.certificates.UserTLS,
			NodeTLS:  s.certificates.NodeTLS(),
			Etcd:     s.store.Connect,
		})
		s.api = &api{apiComponent: remote, remote: remote, reconnect: remote.ReconnectUser, others: func() []string {
			servers, _ := remote.Servers()
			return servers
		}}
		return
	}
	egress := apiserver.Egress{Tunnels: s.tunnels, PodCIDRs: s.cfg.Cluster.OwnPodCIDRs(), Owner: s.registry.Owner}
	if s.roles.node {
		egress.NodeName, egress.NodeIPs = s.node.Name, s.node.IPs
	}
	keys := s.newEncryption()
	var metricsTLS *tls.Config
	if s.cfg.Cluster.Has(config.MetricsServer) {
		metricsTLS = s.certificates.KubeletTLS(resourcemetrics.User)
	}
	vip, _ := netip.ParseAddr(s.cfg.Server.VIP) // zero without one
	var hooks *lean.Hooks
	if version.Plain == "" {
		hooks = lean.New()
	}
	var deletions func() (*clientv3.Client, error)
	if s.cfg.Server.Backup.Location != "" {
		deletions = s.store.Connect
	}
	server, fault := apiserver.New(apiserver.Config{
		Addr:                listener.Addr(),
		AdvertiseAddress:    s.cfg.Server.Advertised(s.node.IPs[0]),
		VIP:                 vip,
		Cluster:             s.cfg.Cluster,
		Dir:                 s.dir,
		PodSecurityStandard: s.cfg.Server.PodSecurityStandard,
		Datastore:           apiserver.Datastore(s.store.Endpoint()),
		Files:               s.certificates.Files,
		Now:                 s.clock.Now,
		Egress:              egress,
		Transformers:        keys,
		MetricsTLS:          metricsTLS,
		Deletions:           deletions,
		Lean:                hooks,
		Paths:               s.metrics.Paths(metrics.APIServer),
		Args:                s.cfg.Server.KubeAPIServerArgs,
		Scopes: nodescope.Scopes{
			{Resource: "persistentvolumes"}:                                   localstorage.TopologyKey,
			{Resource: "persistentvolumeclaims"}:                              localstorage.TopologyKey,
			{Group: snapshotv1.GroupName, Resource: "volumesnapshotcontents"}: utils.VolumeSnapshotContentManagedByLabel,
		},
	})
	s.api, s.faults = &api{apiComponent: server, server: server, keys: keys}, append(s.faults, fault)
}

// newEncryption returns the part that encrypts the Secrets of the API server.
func (s *server) newEncryption() *encryption.Encryption {
	return encryption.New(encryption.Config{
		KeyFile:   s.certificates.EncryptionKeyFile,
		NewClient: s.store.Connect,
		Prefix:    path.Join("/", cmp.Or(s.cfg.Server.APIServerArg("etcd-prefix"), "registry")),
		Address:   s.cfg.Server.Advertised(s.node.IPs[0]).String(),
		Shared:    s.roles.objects.Shared(),
		Enabled:   s.cfg.Server.SecretsEncryption,
		Theirs:    encryptedByUser(&s.cfg.Server),
	})
}

// encryptedByUser returns which arguments of the API server show that the user manages
// encryption, or "" if kedge does.
func encryptedByUser(cfg *config.Server) string {
	switch {
	case cfg.APIServerArg("encryption-provider-config") != "":
		return "kube-apiserver-arg sets encryption-provider-config, so the API server encrypts by that file"
	case cfg.APIServerArg("etcd-servers") != "" || cfg.APIServerArg("etcd-servers-overrides") != "":
		return "kube-apiserver-arg sets etcd-servers, so the objects are not in the datastore that has the keys: set encryption-provider-config to encrypt them"
	}
	return ""
}

// servingCertificate chooses a certificate by the name that the client asks for. The API
// server has further certificates if the user sets tls-sni-cert-key with
// --kube-apiserver-arg.
func servingCertificate(api *api, certificates *pki.Server) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate, err := api.Certificate(hello); certificate != nil || err != nil {
			return certificate, err
		}
		return certificates.ServingCertificate(hello)
	}
}
