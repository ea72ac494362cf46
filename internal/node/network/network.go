// Package network gives pods their network: it runs flannel as a library, so
// that pods of different nodes reach each other, writes the CNI configuration
// that containerd sets pods up with, and masquerades what leaves the cluster.
// The agent package runs it on every node.
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
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// name is the component's name.
const name = "network"

// backendStopTimeout is how long a stopped backend is waited for. Flannel's
// backends can hang in their end: WatchLeases in flannel's
// pkg/subnet/subnet.go sends to a channel that nobody reads any more.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/subnet/subnet.go WatchLeases
const backendStopTimeout = 2 * time.Second

// errAgain ends a backend that is to be set up anew.
var errAgain = errors.New("set up the network again")

// Config is what a Network needs to know.
type Config struct {
	// Client speaks as system:kedge:flannel, which may get, list and watch
	// nodes and patch nodes/status.
	Client *rest.Config
	// Informers are of nodes.
	Informers objectcache.Source
	// NodeName is this node's name.
	NodeName string
	// NodeIPs are this node's addresses, at most one of each family. Traffic
	// between pods of different nodes takes the interfaces that have them.
	NodeIPs []netip.Addr
	// ExternalIPs are what other nodes send that traffic to, where it is not
	// NodeIPs: this node is behind NAT. Interface is another one for it.
	ExternalIPs []netip.Addr
	Interface   string
	// Cluster is read for the ranges of pods and the backend.
	Cluster config.Cluster
	// ConfDir is the folder that the CNI configuration is written to.
	ConfDir string
	// Nftables is whether the kernel has nftables; without it the CNI plugins
	// masquerade by iptables.
	Nftables bool
}

// Network is the component.
type Network struct {
	cfg Config
	log *logrus.Entry
	// client is made of cfg.Client; tests put a fake one here.
	client kubernetes.Interface
}

// New returns the network component of a node.
func New(cfg Config) *Network {
	return &Network{cfg: cfg, log: logrus.WithField("component", name)}
}

// Name returns the component's name.
func (n *Network) Name() string { return name }

// Run sets the network up and keeps it so. It is ready when the backend is up
// and the CNI configuration written. When ctx is cancelled, interfaces, routes
// and rules stay, for the pods that go on.
func (n *Network) Run(ctx context.Context, ready func()) error {
	if n.cfg.Cluster.FlannelBackend == "none" {
		// Another CNI is brought; what an earlier start left would be in its way.
		if err := removeConflist(n.cfg.ConfDir); err != nil {
			return err
		}
		if err := errors.Join(removeTables(ctx, masqueradeTable), removeIPTables(ctx)); err != nil {
			n.log.Warnf("The rules of an earlier start may be left: %v", err)
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

	ready = sync.OnceFunc(ready) // a backend that is set up again is ready again
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	factory, err := n.cfg.Informers(watching)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	defer stopWatching()
	nodes := factory.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notify,
		UpdateFunc: func(before, now any) {
			if isNews(before.(*corev1.Node), now.(*corev1.Node)) {
				notify(now)
			}
		},
		DeleteFunc: notify,
	}); err != nil {
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
		n.log.Warn("The network's device or this node's pod range changed; setting the network up again")
	}
}

// serve runs one backend from its set-up to its end. It returns errAgain if
// that is because it must be set up again.
func (n *Network) serve(ctx context.Context, l *leases, ready func()) error {
	podCIDRs, err := parseCIDRs(l.podCIDRs)
	if err != nil {
		return fmt.Errorf("read pod range of node %s: %w", n.cfg.NodeName, err)
	}
	f, err := newFence(n.cfg.Nftables, n.cfg.Cluster.FlannelBackend == "vxlan", podCIDRs)
	if err != nil {
		return err
	}
	// Before there is a device that takes packets.
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
		if err := masquerade(ctx, podCIDRs, n.cfg.Cluster.PodCIDRs()); err != nil {
			return err
		}
	}
	if err := alignMTU(backend.MTU()); err != nil {
		return err
	}
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
	if n.cfg.Nftables {
		n.warnOfDroppedForwarding(ctx)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		select {
		case <-ended:
		case <-time.After(backendStopTimeout):
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("flannel's backend %s ended by itself", n.cfg.Cluster.FlannelBackend)
	}
	return context.Cause(ctx)
}

// isNews is whether anything of a node has changed that its network depends on:
// each of many nodes hears of every change of all others.
func isNews(before, now *corev1.Node) bool {
	return before.UID != now.UID ||
		!slices.Equal(before.Spec.PodCIDRs, now.Spec.PodCIDRs) ||
		!maps.Equal(before.Annotations, now.Annotations) ||
		!slices.Equal(before.Status.Addresses, now.Status.Addresses)
}

// waitForPodCIDRs returns this node's object when it has a range of pods of
// every family of the cluster. The only error is that ctx is cancelled.
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
			n.log.Warnf("Still waiting for the controllers to give node %s a range of pods", n.cfg.NodeName)
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
