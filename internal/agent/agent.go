// Package agent is a kedge node: the list of its components in boot order. A server adds
// the same list to its own.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"time"

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
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/mesh"
	"github.com/kedge-dev/kedge/internal/node/network"
	"github.com/kedge-dev/kedge/internal/node/proxy"
	"github.com/kedge-dev/kedge/internal/node/recorder"
)

// AddTo adds a node's components to group. Those that call the API come after the
// component api. AddTo fails, before anything runs, if the host or the settings have
// faults. controllers is nil if no controllers run in this process.
func AddTo(group *component.Group, cfg Config, api, controllers component.Component) (*Node, error) {
	n, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	helpers := group.Add(n.helpers())
	machine := group.Add(host.New(host.Config{Facts: n.facts, IPv6: hasIPv6(n.Cluster.PodCIDRs())}), helpers)
	group.Add(n.events, api)
	group.Add(n.searchDomains(), n.events)
	images := group.Add(n.images())
	runtime := group.Add(n.runtime(), machine, images)
	group.Add(n.sharing, runtime, api)
	driver := group.Add(n.Driver, machine)
	group.Add(n.provisioner(), driver, api)
	group.Add(n.volumeData(), driver, runtime, api)
	policies := n.policies()
	group.Add(policies, machine, api)
	kubelet := n.kubelet(policies)
	group.Add(kubelet, controllers, driver, runtime, api)
	group.Add(n.registration(), kubelet)
	pods := group.Add(n.network(), machine, api)
	group.Add(n.proxyRules(), machine)
	services := group.Add(n.proxy(), machine, api)
	balancer := group.Add(n.loadBalancer(), machine, api)
	// The gateway stops first, while the others still bring its clients to other nodes.
	group.Add(n.gateway(), append(slices.Clone(n.Server.Balancing), machine, api, services, balancer)...)
	dns := group.Add(n.dns(), machine, api)
	ready := group.Add(n.watch(), kubelet, pods, services, dns)
	group.Add(n.upgrader(), api)
	if err := errors.Join(n.faults...); err != nil {
		return nil, err
	}
	return &Node{Ready: ready, KubeletPort: kubelet.Port()}, nil
}

// Node is what other components of the group need to know about a node in it.
type Node struct {
	// Ready is ready when the node is.
	Ready component.Component
	// KubeletPort is where the kubelet will listen.
	KubeletPort int
}

// Config is what a node is made from.
type Config struct {
	Process  *Process
	Dir      datadir.Dir
	Node     host.Node
	Settings config.Node
	Cluster  config.Cluster
	API      API
	// Servers knows the servers that this node connects to. It is nil if there are none.
	Servers proxy.Servers
	// Mesh connects the pods of nodes. It is nil if the pods' network is another one.
	Mesh *mesh.Mesh
	// Driver makes local volumes on this node. It is nil if the cluster has them
	// disabled.
	Driver *csi.Driver
	// Executable calls take with the executable that has a digest, from one place after the
	// other, until take returns nil.
	Executable   func(ctx context.Context, digest string, take func(io.Reader) error) error
	Certificates Certificates
	// Metrics says what the node serves of the metrics of this process.
	Metrics *metrics.Division
	// Recorder is the flight recorder of this host.
	Recorder *recorder.Recorder
	// Server is what a server in this process gives to its own node. It is zero on agents.
	Server Server
}

// API is how the components of a node reach the API.
type API struct {
	// Clients connects each component to the API as a user of its own.
	Clients
	// Reconnect closes a user's connections to the API, because a request that began at a
	// time got no answer. It is nil if the API is in this process.
	Reconnect func(user string, began time.Time)
	// Informers are the informers that the components share.
	Informers objectcache.Source
}

// Clients makes a connection to the API for a user who is in groups.
type Clients interface {
	ClientConfig(user string, groups ...string) *rest.Config
}

// Certificates prove who a node is, and who its callers are.
type Certificates struct {
	// The kubelet's serving certificate, and the authority of its callers.
	ServingCertFile, ServingKeyFile string
	ClientCAFile                    string
	// TLS has this node's certificate, for its calls to servers.
	TLS *tls.Config
}

// Server is what a server gives to its own node.
type Server struct {
	// Policies calls send with what a node's pods are held to, until ctx ends or send fails:
	// first everything, and then each change. Routes does the same with what its gateway serves,
	// and Orders with what it is to run. Each is nil if the node hears that from another server.
	Policies func(ctx context.Context, node string, send func(netpolicy.Update) error) error
	Routes   func(ctx context.Context, node string, send func(routing.Update) error) error
	Orders   func(ctx context.Context, node string, send func(upgrades.Order) error) error
	// Volumes keeps the contents of the node's volumes. It is nil if another server does.
	Volumes volumedata.Server
	// Certificate proves to other nodes that this node is a server.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Balancing are the components that send clients to other nodes. The gateway of this node
	// stops before them.
	Balancing []component.Component
	// Ports are the ports of the server on this node.
	Ports []host.Port
}

// node makes the components of a node: a method each. A component that this node does not have
// is nil.
type node struct {
	Config
	facts      host.Facts
	resolvConf string
	assets     assets.Paths
	backend    map[string]any
	events     *events.Node
	// source and own are nil with the user's own runtime. sharing is nil without the embedded
	// registry.
	source  *registries.Registries
	own     *containerd.Containerd
	sharing *peers.Peers
	// faults are those in the user's settings. If there are any, nothing runs.
	faults []error
}

// prepare finds what several components of a node need, and makes what they find by its path.
func prepare(cfg Config) (*node, error) {
	if err := errors.Join(cfg.Dir.MakeAgent(), checkVolumes(cfg.Dir, cfg.Settings)); err != nil {
		return nil, err
	}
	if cfg.Settings.ProtectKernelDefaults {
		if err := host.CheckKernelDefaults("/"); err != nil {
			return nil, err
		}
	}
	n := &node{Config: cfg}
	n.events = events.NewNode(cfg.Node.Name, n.client())
	var err error
	if n.facts, err = host.Detect(); err != nil {
		return nil, err
	}
	if n.resolvConf, err = host.ResolvConf(cfg.Settings.ResolvConf, cfg.Dir.AgentEtc()); err != nil {
		return nil, err
	}
	if n.assets, err = assets.Find(cfg.Dir.Assets()); err != nil {
		return nil, err
	}
	if n.backend, err = network.ReadConf(cfg.Settings.FlannelConf, cfg.Cluster); err != nil {
		return nil, err
	}
	// `kedge crictl` finds the helpers and the runtime by these links.
	return n, errors.Join(datadir.Link(datadir.HelpersLink, n.assets.Bin), datadir.Link(datadir.RuntimeLink, n.socket()), UseHelpers(n.assets.Bin), useWireguardKey())
}

// client returns the configuration with which the node itself calls the API.
func (n *node) client() *rest.Config {
	return n.API.ClientConfig(pki.NodeUser(n.Node.Name), pki.NodesGroup, pki.NodeGroup(n.Node.Name))
}

// user returns the configuration with which a component of the node calls the API.
func (n *node) user(name string) *rest.Config {
	return n.API.ClientConfig(name, pki.NodeGroup(n.Node.Name))
}
