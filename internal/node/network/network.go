// Package network connects the pods of all nodes, with flannel and CNI plugins. It runs flannel as a
// library, so that pods of different nodes reach each other, writes the CNI configuration by which
// the container runtime connects pods, and masquerades packets that leave the cluster. The agent
// package runs it on every node.
package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/node/mesh"
)

// name is the component's name.
const name = "network"

// backendStopTimeout limits the wait for a backend that was stopped. flannel's backends can hang when
// they end: WatchLeases in flannel's pkg/subnet/subnet.go sends to a channel that nobody reads any
// more.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/subnet/subnet.go WatchLeases
const backendStopTimeout = 2 * time.Second

// errAgain ends a backend that is to be set up again.
var errAgain = errors.New("set up the network again")

// Config is what New needs.
type Config struct {
	// Client calls as system:kedge:flannel, which may get, list and watch nodes and patch
	// nodes/status.
	Client *rest.Config
	// Informers provide nodes.
	Informers objectcache.Source
	// NodeName is this node's name.
	NodeName string
	// NodeIPs are this node's addresses, at most one of each family. Traffic between pods of
	// different nodes uses the interfaces that have these addresses.
	NodeIPs []netip.Addr
	// ExternalIPs replace NodeIPs as the addresses to which other nodes send that traffic, if
	// this node is behind NAT. Interface, if not empty, replaces the interfaces of NodeIPs.
	ExternalIPs []netip.Addr
	Interface   string
	// Cluster provides the pod CIDRs and the backend.
	Cluster config.Cluster
	// Backend has settings of flannel's backend, from ReadConf.
	Backend map[string]any
	// Mesh is what the backend mesh uses. It is nil with another one.
	Mesh *mesh.Mesh
	// ConfDir is the folder for the CNI configuration.
	ConfDir string
	// Nftables is true if the kernel has nftables. Without it the CNI plugins masquerade with
	// iptables.
	Nftables bool
}

// Network is the component.
type Network struct {
	cfg Config
	log *logrus.Entry
	// client is made from cfg.Client, or is a fake in tests.
	client kubernetes.Interface
}

// New returns the network component of a node.
func New(cfg Config) *Network {
	return &Network{cfg: cfg, log: logrus.WithField("component", name)}
}

// Name returns the component's name.
func (n *Network) Name() string { return name }

// Run sets up the network and keeps it up to date. It is ready when the backend is up and the CNI
// configuration is written. When ctx is cancelled, the interfaces, routes and rules stay, because
// pods keep running.
func (n *Network) Run(ctx context.Context, ready func()) error {
	if n.cfg.Cluster.FlannelBackend == "none" {
		// The user brings another CNI. What an earlier start left would conflict with it.
		if err := removeConflist(n.cfg.ConfDir); err != nil {
			return err
		}
		if err := errors.Join(removeTables(ctx, masqueradeTable), removeIPTables(ctx), removeSources(n.cfg.Cluster.PodCIDRs())); err != nil {
			n.log.Warnf("Cannot remove all firewall rules and addresses of an earlier start: %v", err)
		}
		ready()
		<-ctx.Done()
		return nil
	}
	if n.client == nil {
		client, err := kubernetes.NewForConfig(n.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		n.client = client
	}

	ready = sync.OnceFunc(ready) // a backend that is set up again calls ready again
	watching, factory, end, err := n.cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	nodes := factory.Core().V1().Nodes()
	changed := loop.NewChanges()
	if _, err := nodes.Informer().AddEventHandler(objectcache.Handler(changed, nil, isSame)); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	factory.StartWithContext(watching)

	for {
		node, err := n.waitForPodCIDRs(ctx, nodes.Lister().Get, changed)
		if err != nil {
			return nil // ctx is cancelled
		}
		again, stop := context.WithCancelCause(ctx)
		l := &leases{
			client:   n.client,
			nodeName: n.cfg.NodeName,
			nodeUID:  node.UID,
			podCIDRs: node.Spec.PodCIDRs,
			nodes:    nodes.Lister(),
			changed:  changed,
			stopped:  ctx.Done(),
			again:    func() { stop(errAgain) },
			log:      n.log,
		}
		err = n.serve(again, l, ready)
		stop(nil)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errAgain) {
			return err
		}
		n.log.Warn("A network device is gone or this node's pod CIDR changed: setting up the network again")
	}
}

// serve runs one backend until it ends. It returns errAgain if the backend must be set up again.
func (n *Network) serve(ctx context.Context, l *leases, ready func()) error {
	podCIDRs, err := parseCIDRs(l.podCIDRs)
	if err != nil {
		return fmt.Errorf("read pod CIDR of node %s: %w", n.cfg.NodeName, err)
	}
	var vxlan *config.VXLAN
	if n.cfg.Cluster.FlannelBackend == "vxlan" {
		vxlan = &n.cfg.Cluster.VXLAN
	}
	f, err := newFence(n.cfg.Nftables, vxlan, podCIDRs, n.cfg.Cluster.PodCIDRs())
	if err != nil {
		return err
	}
	// The fence comes before the device that receives packets.
	nodes, err := l.nodes.List(labels.Everything())
	if err == nil {
		err = f.update(ctx, nodes)
	}
	if err != nil {
		return err
	}
	backend, err := n.registerBackend(ctx, l, podCIDRs, f)
	if err != nil {
		return err
	}
	if n.cfg.Nftables {
		if err := masquerade(ctx, n.masqueraded(podCIDRs), n.cfg.Cluster.PodCIDRs(), n.cfg.Mesh != nil); err != nil {
			return err
		}
	}
	if err := errors.Join(keepSources(podCIDRs, n.cfg.Cluster.PodCIDRs()), leaveFormerRange(podCIDRs, n.cfg.Cluster.PodCIDRs())); err != nil {
		return err
	}
	if err := alignMTU(backend.MTU(), n.cfg.Cluster.VXLAN.VNI); err != nil {
		return err
	}
	n.letPodsThrough(ctx)
	conf := conflist{PodCIDRs: podCIDRs, MTU: backend.MTU(), Nftables: n.cfg.Nftables}
	if err := conf.write(n.cfg.ConfDir); err != nil {
		return err
	}

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		backend.Run(ctx)
	}()
	ready()
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(backendStopTimeout):
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("flannel's backend %s ended unexpectedly", n.cfg.Cluster.FlannelBackend)
	}
	return context.Cause(ctx)
}

// masqueraded returns those of the node's pod CIDRs whose packets get the address of the node.
func (n *Network) masqueraded(podCIDRs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(podCIDRs), func(own netip.Prefix) bool {
		return own.Addr().Is6() && !n.cfg.Cluster.FlannelIPv6Masq
	})
}

// isSame tells whether nothing has changed that the network of a node depends on. In a large cluster
// each node receives every change of all others, so most of them must be ignored cheaply.
func isSame(before, now *corev1.Node) bool {
	return before.UID == now.UID &&
		slices.Equal(before.Spec.PodCIDRs, now.Spec.PodCIDRs) &&
		maps.Equal(before.Annotations, now.Annotations) &&
		slices.Equal(before.Status.Addresses, now.Status.Addresses)
}

// waitForPodCIDRs returns this node's object when it has a pod CIDR of every family of the cluster.
// The only error is that ctx is cancelled.
func (n *Network) waitForPodCIDRs(ctx context.Context, get func(string) (*corev1.Node, error), changed <-chan struct{}) (*corev1.Node, error) {
	remind := time.NewTicker(30 * time.Second)
	defer remind.Stop()
	for {
		node, err := get(n.cfg.NodeName)
		if err == nil && len(node.Spec.PodCIDRs) == len(n.cfg.Cluster.ClusterCIDR) {
			return node, nil
		}
		select {
		case <-changed:
		case <-remind.C:
			n.log.Warnf("Still waiting for a pod CIDR of node %s, which the controllers on a server assign", n.cfg.NodeName)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func parseCIDRs(texts []string) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		prefixes[i] = prefix
	}
	return prefixes, nil
}
