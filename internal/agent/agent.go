// Package agent is a kedge node: the list of its components in boot order. A server adds
// the same list to its own.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/csi/provision"
	"github.com/kedge-dev/kedge/internal/node/dns"
	"github.com/kedge-dev/kedge/internal/node/gateway"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
	"github.com/kedge-dev/kedge/internal/node/loadbalancer"
	"github.com/kedge-dev/kedge/internal/node/network"
	"github.com/kedge-dev/kedge/internal/node/nodewatch"
	"github.com/kedge-dev/kedge/internal/node/policy"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// Config is what AddTo has to know.
type Config struct {
	Process  *Process
	Dir      datadir.Dir
	Node     host.Node
	Settings config.Node
	Cluster  config.Cluster
	// Clients connects each component to the API as a user of its own.
	Clients Clients
	// Reconnect closes a user's connections to the API, because a request that began at a
	// time got no answer. It is nil if the API is in this process.
	Reconnect func(user string, began time.Time)
	// Servers knows the servers that this node connects to. It is nil if there are none.
	Servers proxy.Servers
	// Informers are the informers that the components share.
	Informers objectcache.Source
	// Driver makes local volumes on this node. It is nil if the cluster has them
	// disabled.
	Driver *csi.Driver
	// Policies calls apply with what this node's pods are held to: first everything, and
	// then each change. It keeps trying until ctx ends. It is nil if the cluster has
	// NetworkPolicies disabled.
	Policies func(ctx context.Context, apply func(netpolicy.Update) error) error
	// Routes does the same with what this node's gateway serves. It is nil if the cluster has
	// the gateway disabled.
	Routes func(ctx context.Context, apply func(routing.Update) error) error
	// Orders does the same with what this node is to run, again and again. Executable calls take
	// with the executable that has a digest, from one place after the other, until take returns
	// nil.
	Orders     func(ctx context.Context, apply func(upgrades.Order) error) error
	Executable func(ctx context.Context, digest string, take func(io.Reader) error) error
	// The kubelet's serving certificate, and the authority of its callers.
	ServingCertFile, ServingKeyFile string
	ClientCAFile                    string
	// ServerCertificate proves to other nodes that this node is a server. It is nil on
	// agents.
	ServerCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Balancing are the components of a server in this process that send clients to other
	// nodes. The gateway of this node stops before them.
	Balancing []component.Component
	// ServerPorts are the ports of the server on this node. They are empty on agents.
	ServerPorts []host.Port
	// TLS has this node's certificate, for its calls to servers.
	TLS *tls.Config
	// Metrics says what the node serves of the metrics of this process.
	Metrics *metrics.Division
}

// Clients makes a connection to the API for a user who is in groups.
type Clients interface {
	ClientConfig(user string, groups ...string) *rest.Config
}

// nodeClient returns the configuration with which the node itself calls the API.
func (c *Config) nodeClient() *rest.Config {
	return c.Clients.ClientConfig(pki.NodeUser(c.Node.Name), pki.NodesGroup, pki.NodeGroup(c.Node.Name))
}

// Node is what other components of the group need to know about a node in it.
type Node struct {
	// Ready is ready when the node is.
	Ready component.Component
	// KubeletPort is where the kubelet will listen.
	KubeletPort int
}

// AddTo adds a node's components to group. Those that call the API come after the
// component api. AddTo fails, before anything runs, if the host or the settings have
// faults.
//
// The kubelet starts after the components in first: the controllers, if they run in this
// process. Upstream's CSI volume plugin keeps the node's name in a variable of the
// package, which the last one to set up the plugin overwrites
// (pkg/volume/csi/csi_plugin.go, nim). The controllers have no node, so the kubelet would
// never become ready, nor know a CSI driver.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go nim csiPlugin.Init
func AddTo(group *component.Group, cfg Config, api component.Component, first ...component.Component) (*Node, error) {
	if err := errors.Join(cfg.Dir.MakeAgent(), checkVolumes(cfg.Dir, cfg.Settings)); err != nil {
		return nil, err
	}
	if cfg.Settings.ProtectKernelDefaults {
		if err := host.CheckKernelDefaults("/"); err != nil {
			return nil, err
		}
	}
	facts, err := host.Detect()
	if err != nil {
		return nil, err
	}
	resolvConf, err := host.ResolvConf(cfg.Settings.ResolvConf, cfg.Dir.AgentEtc())
	if err != nil {
		return nil, err
	}
	helpers, err := assets.Find(cfg.Dir.Assets())
	if err != nil {
		return nil, err
	}
	var (
		podCIDRs   = cfg.Cluster.PodCIDRs()
		clusterDNS = cfg.Cluster.DNSAddresses()
	)

	// At the same time as the start of the API server, because the first time it takes a
	// while.
	unpacked := component.Step("helpers", func(context.Context) error {
		_, err := assets.Unpack(cfg.Dir.Assets())
		return err
	})
	group.Add(unpacked)

	hostComponent := host.New(host.Config{Facts: facts, IPv6: hasIPv6(podCIDRs)})
	group.Add(hostComponent, unpacked)

	nodeEvents := events.NewNode(cfg.Node.Name, cfg.nodeClient())
	group.Add(nodeEvents, api)

	group.Add(searchDomains(HostResolvConf(cfg.Settings), cfg.Cluster.ClusterDomain, nodeEvents.Warn), nodeEvents)

	runtime, socket, reader, err := addRuntime(group, cfg, facts, helpers, nodeEvents.Warn, hostComponent, api)
	if err != nil {
		return nil, err
	}
	// `kedge crictl` finds the helpers and the runtime by these links.
	if err := errors.Join(link(datadir.HelpersLink, helpers.Bin), link(datadir.RuntimeLink, socket), UseHelpers(helpers.Bin), useWireguardKey()); err != nil {
		return nil, err
	}

	if cfg.Driver != nil {
		group.Add(cfg.Driver, hostComponent)
		group.Add(provision.New(provision.Config{
			Node:      cfg.Node.Name,
			Driver:    cfg.Driver,
			Client:    cfg.Clients.ClientConfig("system:kedge:storage", pki.NodeGroup(cfg.Node.Name)),
			Informers: cfg.Informers,
		}), cfg.Driver, api)
		// The kubelet stops before the driver, or it would remove the driver from its
		// Node.
		first = append(first, cfg.Driver)
	}

	policies := policy.New(policyConfig(cfg, facts, nodeEvents))
	group.Add(policies, hostComponent, api)
	var gate kubelet.Gate
	if policies.Enforces() {
		gate = policies
	}

	kubeletComponent, kubeletFault := kubelet.New(kubelet.Config{
		NodeName:        cfg.Node.Name,
		NodeIPs:         cfg.Node.IPs,
		ExternalIPs:     cfg.Settings.ExternalIPs(),
		CloudController: cfg.Cluster.DisableCloudController,
		Client:          objectcache.Share(cfg.nodeClient(), cfg.Informers, &corev1.Node{}, &corev1.Service{}),
		RuntimeSocket:   socket,
		Runtime:         reader,
		Gate:            gate,
		ClusterDNS:      clusterDNS,
		ClusterDomain:   cfg.Cluster.ClusterDomain,
		ResolvConf:      resolvConf,
		ServingCertFile: cfg.ServingCertFile,
		ServingKeyFile:  cfg.ServingKeyFile,
		ClientCAFile:    cfg.ClientCAFile,
		StaticPods:      cfg.Dir.StaticPods(),
		Warn:            nodeEvents.Warn,
		Root:            datadir.KubeletRoot,
		Facts:           facts,
		Labels:          cfg.Settings.NodeLabels,
		Taints:          cfg.Settings.NodeTaints,
		ProtectKernel:   cfg.Settings.ProtectKernelDefaults,

		CredentialProviders: cfg.Settings.ImageCredentialProviderBinDir,
		CredentialConfig:    cfg.Settings.ImageCredentialProviderConfig,

		Paths: cfg.Metrics.Paths(metrics.Kubelet),
		Args:  cfg.Settings.KubeletArgs,
	})
	group.Add(kubeletComponent, append(first, runtime, api)...)
	if cfg.Driver != nil {
		group.Add(component.Step("csi-registration", cfg.Driver.Register), kubeletComponent)
	}

	backend, err := network.ReadConf(cfg.Settings.FlannelConf, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	onLink := network.Config{
		Client:    cfg.Clients.ClientConfig("system:kedge:flannel", pki.NodeGroup(cfg.Node.Name)),
		Informers: cfg.Informers,
		NodeName:  cfg.Node.Name,
		NodeIPs:   cfg.Node.IPs,
		Interface: cfg.Settings.FlannelIface,
		Cluster:   cfg.Cluster,
		Backend:   backend,
		ConfDir:   cniConfDir(cfg),
		Nftables:  facts.NoNftables == nil,
	}
	if cfg.Cluster.FlannelExternalIP {
		onLink.ExternalIPs = cfg.Settings.ExternalIPs()
	}
	networkComponent := network.New(onLink)
	group.Add(networkComponent, hostComponent, api)

	onNode := []component.Component{kubeletComponent, networkComponent}
	proxyComponent, proxyFault := proxy.New(proxy.Config{
		Client:      cfg.Clients.ClientConfig(pki.ProxyUser, pki.NodeGroup(cfg.Node.Name)),
		Informers:   cfg.Informers,
		LocalSlices: dns.ManagedBy,
		NodeName:    cfg.Node.Name,
		NodeIPs:     cfg.Node.IPs,
		ExternalIPs: cfg.Settings.ExternalIPs(),
		Servers:     cfg.Servers,
		Cluster:     cfg.Cluster,
		NoNftables:  facts.NoNftables,
		Args:        cfg.Settings.KubeProxyArgs,
	})
	beforeGateway := append(slices.Clone(cfg.Balancing), hostComponent, api)
	if cfg.Cluster.DisableKubeProxy {
		// Objects that an earlier start has left would compete with the user's.
		group.Add(component.Step("proxy-rules", proxy.RemoveRules), hostComponent)
	} else {
		group.Add(proxyComponent, hostComponent, api)
		onNode, beforeGateway = append(onNode, proxyComponent), append(beforeGateway, proxyComponent)
	}

	if cfg.Cluster.Has(config.ServiceLB) {
		balancer := loadbalancer.Config{
			Client:    cfg.Clients.ClientConfig(servicelb.User, pki.NodeGroup(cfg.Node.Name)),
			Informers: cfg.Informers,
			NodeName:  cfg.Node.Name,
			Addresses: slices.Concat(cfg.Node.IPs, cfg.Settings.ExternalIPs()),
			Reserved:  slices.Concat(Ports(cfg.Settings, cfg.Cluster, cfg.Node.IPs), ClusterPorts(cfg.Cluster), cfg.ServerPorts),
		}
		if cfg.Reconnect != nil {
			balancer.Reconnect = func(began time.Time) { cfg.Reconnect(servicelb.User, began) }
		}
		balancerComponent := loadbalancer.New(balancer)
		group.Add(balancerComponent, hostComponent, api)
		beforeGateway = append(beforeGateway, balancerComponent)
	}
	// It stops first, while the others still bring its clients to other nodes.
	group.Add(gateway.New(gatewayConfig(cfg)), beforeGateway...)

	if cfg.Cluster.Has(config.CoreDNS) {
		dnsComponent := dns.New(dns.Config{
			Plugins: cfg.Process.DNS,
			Client:  cfg.Clients.ClientConfig("system:kedge:dns", pki.NodeGroup(cfg.Node.Name)),
			Objects: objectcache.Share(cfg.Clients.ClientConfig(pki.ProxyUser, pki.NodeGroup(cfg.Node.Name)), cfg.Informers,
				&corev1.Service{}, &discoveryv1.EndpointSlice{}, &corev1.Namespace{}),
			NodeName:      cfg.Node.Name,
			NodeIPs:       cfg.Node.IPs,
			PodCIDRs:      podCIDRs,
			ClusterDomain: cfg.Cluster.ClusterDomain,
			ClusterDNS:    clusterDNS,
			ResolvConf:    HostResolvConf(cfg.Settings),
			Folder:        datadir.DNSFolder,
		})
		group.Add(dnsComponent, hostComponent, api)
		onNode = append(onNode, dnsComponent)
	}

	node := nodewatch.New(objectcache.Share(cfg.nodeClient(), cfg.Informers, &corev1.Node{}), cfg.Node.Name)
	group.Add(node, onNode...)
	upgrader, err := newUpgrader(cfg)
	if err != nil {
		return nil, err
	}
	group.Add(upgrader, api)
	// All faults in the user's arguments together. The caller then does not run the
	// group.
	if err := errors.Join(kubeletFault, proxyFault); err != nil {
		return nil, err
	}
	return &Node{Ready: node, KubeletPort: kubeletComponent.Port()}, nil
}

// policyConfig returns what enforces NetworkPolicies on a node.
func policyConfig(cfg Config, facts host.Facts, nodeEvents *events.Node) policy.Config {
	own := policy.Config{Policies: cfg.Policies, NoNftables: facts.NoNftables, Metrics: cfg.Metrics.Registerer(metrics.Kubelet), WarnPod: nodeEvents.WarnPod}
	if cfg.Cluster.FlannelBackend != "none" {
		own.Bridge = network.BridgeName
	}
	if cfg.Cluster.Has(config.CoreDNS) {
		own.ClusterDNS = cfg.Cluster.DNSAddresses()
	}
	return own
}

// link makes path a link to target. It replaces an earlier link.
func link(path, target string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove link: %w", err)
	}
	if err := os.Symlink(target, path); err != nil {
		return fmt.Errorf("make link: %w", err)
	}
	return nil
}

// NewDriver returns the driver that makes local volumes on a node, or nil if the cluster
// has them disabled.
func NewDriver(dir datadir.Dir, node string, settings config.Node, cluster config.Cluster) *csi.Driver {
	if !cluster.Has(config.LocalStorage) {
		return nil
	}
	log := logrus.WithField("component", "csi")
	return csi.New(csi.Config{
		Node:       node,
		KubeletDir: datadir.KubeletRoot,
		BaseDir:    settings.VolumesFolder(dir),
		Version:    version.Version,
		OnFault:    func(err error) { log.Warn(err) },
	})
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
