package agent

import (
	"context"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	meshrelay "github.com/kedge-dev/kedge/internal/cluster/mesh"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/dns"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
	"github.com/kedge-dev/kedge/internal/node/loadbalancer"
	"github.com/kedge-dev/kedge/internal/node/mesh"
	"github.com/kedge-dev/kedge/internal/node/network"
	"github.com/kedge-dev/kedge/internal/node/nodewatch"
	"github.com/kedge-dev/kedge/internal/node/policy"
	"github.com/kedge-dev/kedge/internal/node/proxy"
	"github.com/kedge-dev/kedge/internal/node/reach"
	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// follow returns what tells the node something, again and again: the server in this process, or
// else another one.
func follow[U any](n *node, kind nodestream.Kind[U], here func(context.Context, string, func(U) error) error) nodestream.Stream[U] {
	stream := kind.From(n.client())
	if here != nil {
		stream = func(ctx context.Context, apply func(U) error) error { return here(ctx, n.Node.Name, apply) }
	}
	return kind.Keep(stream)
}

// helpers unpacks the helpers, at the same time as the start of the API server, because the
// first time it takes a while.
func (n *node) helpers() component.Component {
	return component.Step("helpers", func(context.Context) error {
		_, err := assets.Unpack(n.Dir.Assets())
		return err
	})
}

// policies enforces NetworkPolicies.
func (n *node) policies() *policy.Policy {
	own := policy.Config{NoNftables: n.facts.NoNftables, Metrics: n.Metrics.Registerer(metrics.Kubelet), WarnPod: n.events.WarnPod}
	if n.Cluster.Has(config.NetworkPolicy) {
		own.Policies = follow(n, nodestream.Policies(), n.Server.Policies)
	}
	if n.Cluster.FlannelBackend != "none" {
		own.Bridge = network.BridgeName
	}
	if n.Cluster.Has(config.CoreDNS) {
		own.ClusterDNS = n.Cluster.DNSAddresses()
	}
	return policy.New(own)
}

// kubelet starts after the controllers, if they run in this process. Upstream's CSI volume
// plugin keeps the node's name in a variable of the package, which the last one to set up the
// plugin overwrites (pkg/volume/csi/csi_plugin.go, nim). The controllers have no node, so the
// kubelet would never become ready, nor know a CSI driver.
//
// It stops before the storage driver, or it would remove the driver from its Node.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go nim csiPlugin.Init
func (n *node) kubelet(policies *policy.Policy) *kubelet.Kubelet {
	settings := kubelet.Config{
		NodeName:        n.Node.Name,
		NodeIPs:         n.Node.IPs,
		ExternalIPs:     n.Settings.ExternalIPs(),
		CloudController: n.Cluster.DisableCloudController,
		Client:          objectcache.Share(n.client(), n.API.Informers, &corev1.Node{}),
		Informers:       n.API.Informers,
		RuntimeSocket:   n.socket(),
		ClusterDNS:      n.Cluster.DNSAddresses(),
		ClusterDomain:   n.Cluster.ClusterDomain,
		ResolvConf:      n.resolvConf,
		ServingCertFile: n.Certificates.ServingCertFile,
		ServingKeyFile:  n.Certificates.ServingKeyFile,
		ClientCAFile:    n.Certificates.ClientCAFile,
		StaticPods:      n.Dir.StaticPods(),
		Warn:            n.events.Warn,
		Root:            datadir.KubeletRoot,
		Facts:           n.facts,
		Labels:          n.Settings.NodeLabels,
		Taints:          n.Settings.NodeTaints,
		ProtectKernel:   n.Settings.ProtectKernelDefaults,

		CredentialProviders: n.Settings.ImageCredentialProviderBinDir,
		CredentialConfig:    n.Settings.ImageCredentialProviderConfig,

		Paths: n.paths(),
		Args:  n.Settings.KubeletArgs,
	}
	if n.own != nil {
		settings.Runtime = n.own.Reader()
	}
	if policies.Enforces() {
		settings.Gate = policies
	}
	made, fault := kubelet.New(settings)
	n.faults = append(n.faults, fault)
	return made
}

// paths are what the kubelet's port answers in place of upstream's kubelet, and besides it.
func (n *node) paths() map[string]http.Handler {
	paths := n.Metrics.Paths(metrics.Kubelet)
	paths[recorder.Path] = n.Recorder
	paths[reach.Path] = reach.New(n.client(), n.socket())
	if n.Mesh != nil {
		paths[mesh.Path] = n.Mesh
	}
	return paths
}

// NewMesh returns what connects the pods of the node, or nil if the pods' network is another one. relay is that of the server in
// this process, or nil.
func NewMesh(node string, cluster config.Cluster, relay *meshrelay.Relay) (*mesh.Mesh, error) {
	if cluster.FlannelBackend != "mesh" {
		return nil, nil
	}
	return mesh.New(mesh.Config{
		NodeName: node, Port: meshrelay.DefaultPort, Relay: relay,
		Reserved: slices.Concat(cluster.PodCIDRs(), cluster.ServiceCIDRs()),
	})
}

// network connects the node's pods with those of other nodes.
func (n *node) network() component.Component {
	settings := network.Config{
		Client:    n.user("system:kedge:flannel"),
		Informers: n.API.Informers,
		NodeName:  n.Node.Name,
		NodeIPs:   n.Node.IPs,
		Interface: n.Settings.FlannelIface,
		Cluster:   n.Cluster,
		Backend:   n.backend,
		Mesh:      n.Mesh,
		ConfDir:   n.cniConfDir(),
		Nftables:  n.facts.NoNftables == nil,
	}
	if n.Cluster.FlannelExternalIP {
		settings.ExternalIPs = n.Settings.ExternalIPs()
	}
	if n.Mesh != nil {
		n.faults = append(n.faults, n.Metrics.Registerer(metrics.Kubelet).Register(n.Mesh))
	}
	return network.New(settings)
}

// proxyRules removes the service proxy's objects that an earlier start has left. They would
// compete with the user's.
func (n *node) proxyRules() component.Component {
	if !n.Cluster.DisableKubeProxy {
		return nil
	}
	return component.Step("proxy-rules", proxy.RemoveRules)
}

// proxy serves Services.
func (n *node) proxy() *proxy.Proxy {
	made, fault := proxy.New(proxy.Config{
		Client:      n.user(pki.ProxyUser),
		Informers:   n.API.Informers,
		LocalSlices: dns.ManagedBy,
		NodeName:    n.Node.Name,
		NodeIPs:     n.Node.IPs,
		ExternalIPs: n.Settings.ExternalIPs(),
		Servers:     n.Servers,
		Cluster:     n.Cluster,
		NoNftables:  n.facts.NoNftables,
		Args:        n.Settings.KubeProxyArgs,
	})
	n.faults = append(n.faults, fault)
	if n.Cluster.DisableKubeProxy {
		return nil
	}
	return made
}

// loadBalancer is the node's part in Services of type LoadBalancer.
func (n *node) loadBalancer() component.Component {
	if !n.Cluster.Has(config.ServiceLB) {
		return nil
	}
	settings := loadbalancer.Config{
		Client:    n.user(servicelb.User),
		Informers: n.API.Informers,
		NodeName:  n.Node.Name,
		Addresses: slices.Concat(n.Node.IPs, n.Settings.ExternalIPs()),
		Reserved:  slices.Concat(Ports(n.Settings, n.Cluster, n.Node.IPs), ClusterPorts(n.Cluster), n.Server.Ports),
	}
	if n.API.Reconnect != nil {
		settings.Reconnect = func(began time.Time) { n.API.Reconnect(servicelb.User, began) }
	}
	return loadbalancer.New(settings)
}

// dns answers the cluster's names.
func (n *node) dns() component.Component {
	if !n.Cluster.Has(config.CoreDNS) {
		return nil
	}
	return dns.New(dns.Config{
		Plugins: n.Process.DNS,
		Client:  n.user("system:kedge:dns"),

		Informers: n.API.Informers,
		Objects: objectcache.Share(n.user(pki.ProxyUser), n.API.Informers,
			&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Namespace{}),
		NodeName:      n.Node.Name,
		NodeIPs:       n.Node.IPs,
		PodCIDRs:      n.Cluster.PodCIDRs(),
		ClusterDomain: n.Cluster.ClusterDomain,
		ClusterDNS:    n.Cluster.DNSAddresses(),
		ResolvConf:    HostResolvConf(n.Settings),
		Folder:        datadir.DNSFolder,
	})
}

// watch is ready when the node is.
func (n *node) watch() component.Component {
	return nodewatch.New(objectcache.Share(n.client(), n.API.Informers, &corev1.Node{}), n.Node.Name)
}

// Metered returns the parts of a node that have metrics.
func Metered(cluster config.Cluster) []metrics.Part {
	parts := []metrics.Part{metrics.Kubelet}
	if !cluster.DisableKubeProxy {
		parts = append(parts, metrics.Proxy)
	}
	if cluster.Has(config.CoreDNS) {
		parts = append(parts, metrics.DNS)
	}
	return parts
}
