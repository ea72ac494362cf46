package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"path"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"k8s.io/client-go/informers"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/remoteapi"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/controlplane/nodescope"
)

// api is the cluster's API for the parts of a server: the API server in this process, or
// those of other servers.
type api struct {
	apiComponent
	// server and keys, which encrypt its Secrets, are there with roles.api.
	server *apiserver.Server
	keys   *encryption.Encryption
	// remote and others, its servers as HOST:PORT, are there without.
	remote tunnel.Servers
	others func() []string
}

// apiComponent is what both kinds of API are.
type apiComponent interface {
	component.Component
	http.Handler
	agent.Clients
	// Informers is an objectcache.Source.
	Informers(ctx context.Context) (informers.SharedInformerFactory, error)
	// Certificate returns a certificate of the user's own for a name, if any.
	Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

// newAPI also returns what is wrong with the user's arguments for the API server.
func (s *server) newAPI(listener net.Listener) (*api, error) {
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
		return &api{apiComponent: remote, remote: remote, others: func() []string {
			servers, _ := remote.Servers()
			return servers
		}}, nil
	}
	egress := apiserver.Egress{Tunnels: s.tunnels, PodCIDRs: s.cfg.Cluster.OwnPodCIDRs(), Owner: s.registry.Owner}
	if s.roles.node {
		egress.NodeName, egress.NodeIPs = s.node.Name, s.node.IPs
	}
	keys := s.newEncryption()
	server, fault := apiserver.New(apiserver.Config{
		Addr:                listener.Addr(),
		AdvertiseAddress:    s.cfg.Server.Advertised(s.node.IPs[0]),
		Cluster:             s.cfg.Cluster,
		Dir:                 s.dir,
		PodSecurityStandard: s.cfg.Server.PodSecurityStandard,
		Datastore:           apiserver.Datastore(s.store.Endpoint()),
		Files:               s.certificates.Files,
		Now:                 s.clock.Now,
		Egress:              egress,
		Transformers:        keys,
		Args:                s.cfg.Server.KubeAPIServerArgs,
		Scopes: nodescope.Scopes{
			{Resource: "persistentvolumes"}:                                   localstorage.TopologyKey,
			{Resource: "persistentvolumeclaims"}:                              localstorage.TopologyKey,
			{Group: snapshotv1.GroupName, Resource: "volumesnapshotcontents"}: utils.VolumeSnapshotContentManagedByLabel,
		},
	})
	return &api{apiComponent: server, server: server, keys: keys}, fault
}

// newEncryption returns what encrypts the Secrets of the API server.
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

// encryptedByUser says by what arguments of the API server the user has taken
// encryption over. It is empty if kedge encrypts.
func encryptedByUser(cfg *config.Server) string {
	switch {
	case cfg.APIServerArg("encryption-provider-config") != "":
		return "kube-apiserver-arg has an encryption-provider-config, by which the API server does it"
	case cfg.APIServerArg("etcd-servers") != "" || cfg.APIServerArg("etcd-servers-overrides") != "":
		return "kube-apiserver-arg has etcd-servers, so that objects are not where the keys would be; encryption-provider-config is for that"
	}
	return ""
}

// servingCertificate chooses by the name a client asks for: the API server has
// certificates of its own for what a user sets with --kube-apiserver-arg
// tls-sni-cert-key.
func servingCertificate(api *api, certificates *pki.Server) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate, err := api.Certificate(hello); certificate != nil || err != nil {
			return certificate, err
		}
		return certificates.ServingCertificate(hello)
	}
}
