// Package proxy serves Services on a node: it runs kube-proxy's nftables mode or, if the user asks
// for it, its iptables mode. It is composed of upstream's packages, because upstream's ProxyServer
// cannot be stopped. The agent package runs it on every node.
package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	watch "k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/metrics"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// name is the component's name.
const name = "proxy"

// reporter is the source of the Events, with upstream's name.
const reporter = "kube-proxy"

// readyPoll is how often Run checks whether the first rules are written.
const readyPoll = 20 * time.Millisecond

// Config is what New needs.
type Config struct {
	// Client writes events as system:kube-proxy.
	Client *rest.Config
	// Informers provide nodes, Services, EndpointSlices and ServiceCIDRs.
	Informers objectcache.Source
	// LocalSlices is the name of the manager of EndpointSlices whose endpoints are only for pods
	// on the endpoints' own nodes.
	LocalSlices string
	// NodeName is this node's name.
	NodeName string
	// NodeIPs are this node's addresses, at most one of each family.
	NodeIPs []netip.Addr
	// ExternalIPs are this node's addresses for users, which the host may not have itself.
	ExternalIPs []netip.Addr
	// Servers knows the servers that this node connects to. It is nil if there are none.
	Servers Servers
	// Cluster provides the ranges of pods and Services.
	Cluster config.Cluster
	// Args are the user's arguments for kube-proxy, each as name=value.
	Args []string
	// NoNftables is what of nftables the kernel lacks, or nil.
	NoNftables error
}

// Proxy is the component.
type Proxy struct {
	cfg    Config
	config *proxyconfig.KubeProxyConfiguration
	log    *logrus.Entry
	// client is made from cfg.Client, or is a fake in tests.
	client kubernetes.Interface
}

// New returns the service proxy of a node. It fails if cfg.Args has faults, or if the cluster uses kube-proxy
// and the kernel does not support the mode.
func New(cfg Config) (*Proxy, error) {
	configuration, err := newConfiguration(cfg.Cluster, cfg.Args)
	if err != nil {
		return nil, err
	}
	if configuration.Mode == proxyconfig.ProxyModeNFTables && cfg.NoNftables != nil && !cfg.Cluster.DisableKubeProxy {
		return nil, fmt.Errorf("the service proxy cannot use nftables on this kernel: %w: load the kernel's module, or set --kube-proxy-arg proxy-mode=iptables", cfg.NoNftables)
	}
	return &Proxy{cfg: cfg, config: configuration, log: logrus.WithField("component", name)}, nil
}

// Name returns the component's name.
func (p *Proxy) Name() string { return name }

// Run keeps the host's rules in step with Services and their endpoints. It is ready when the rules of
// all existing Services are written. When ctx is cancelled, the rules stay, because pods keep
// running.
//
// Some of upstream's loops live as long as the process. When they receive no more changes, they only
// check that their rules exist: SyncLoop in pkg/proxy/nftables/proxier.go and
// pkg/proxy/iptables/proxier.go, and iptables' Monitor. The listeners of healthCheckNodePorts
// (pkg/proxy/healthcheck/service_health.go) stay open as long.
//
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go Proxier.SyncLoop
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/iptables/proxier.go Proxier.SyncLoop
//upstream:relies-on k8s.io/kubernetes/pkg/proxy/healthcheck/service_health.go server.SyncServices
func (p *Proxy) Run(ctx context.Context, ready func()) error {
	if p.client == nil {
		client, err := kubernetes.NewForConfig(p.cfg.Client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		p.client = client
	}
	// Whatever ends this component also ends everything that it has started.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	p.setConntrack(ctx)
	metrics.RegisterMetrics(p.config.Mode)
	// There are two factories: handlers that are added to a started factory receive objects at once,
	// before upstream's parts are ready for them (see watchAll).
	early, err := p.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer early.Shutdown()
	defer cancel(nil)
	late, err := p.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer late.Shutdown()
	defer cancel(nil)

	node, podCIDRs, err := p.startNode(ctx, early, cancel)
	if err != nil {
		return nil // ctx is cancelled
	}
	health := healthcheck.NewProxyHealthServer("", 2*p.config.SyncPeriod.Duration, node)
	stopHealth, err := serveHealth(p.config.HealthzBindAddress, health)
	if err != nil {
		return err
	}
	defer stopHealth()
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: p.client.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("record events: %w", err)
	}

	families := p.families()
	removeOtherMode(ctx, p.config.Mode, p.log)
	proxier, err := p.newProxier(ctx, families, podCIDRs, broadcaster.NewRecorder(scheme.Scheme, reporter), health)
	if err != nil {
		return err
	}
	go proxier.SyncLoop()
	// Upstream's SyncLoop reports an update before it writes rules for the first time. So the rules
	// of a family are written when the family reports its second update.
	//upstream:relies-on k8s.io/kubernetes/pkg/proxy/nftables/proxier.go Proxier.SyncLoop
	before, err := updates(ctx, health, families, nil)
	if err != nil {
		return failure(ctx)
	}
	var own *guard
	addresses := func(handler watch.ServiceHandler) watch.ServiceHandler {
		own = newGuard(ownAddresses{handler, p.cfg.NodeIPs, p.cfg.ExternalIPs}, p.cfg)
		return own
	}
	watchAll(ctx, late, localSlices{manager: p.cfg.LocalSlices, nodeName: p.cfg.NodeName}, addresses, proxier, p.config.ConfigSyncPeriod.Duration)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel(nil)
	following.Go(func() { p.follow(ctx, own) })
	if _, err := updates(ctx, health, families, before); err != nil {
		return failure(ctx)
	}
	ready()
	<-ctx.Done()
	return failure(ctx)
}

// startNode follows the own Node, and returns its ranges of pods if the rules need them. end is called when those
// change. The only error is that ctx is cancelled.
func (p *Proxy) startNode(ctx context.Context, early informers.SharedInformerFactory, end context.CancelCauseFunc) (*node, []string, error) {
	node := newNode(onlyNode(early.Core().V1().Nodes(), p.cfg.NodeName), p.cfg.NodeName)
	early.StartWithContext(ctx)
	if p.config.DetectLocalMode != proxyconfig.LocalModeNodeCIDR {
		return node, nil, nil
	}
	podCIDRs, err := node.waitForPodCIDRs(ctx)
	if err != nil {
		return nil, nil, err
	}
	node.onPodCIDRChange(podCIDRs, end)
	return node, podCIDRs, nil
}

// updates waits until every family has reported an update other than before, and returns the reports.
// The only error is that ctx is cancelled.
func updates(ctx context.Context, health *healthcheck.ProxyHealthServer, families []corev1.IPFamily, before map[corev1.IPFamily]healthcheck.ProxierHealth) (map[corev1.IPFamily]healthcheck.ProxierHealth, error) {
	var now map[corev1.IPFamily]healthcheck.ProxierHealth
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) {
		now = health.Health().Status
		return !slices.ContainsFunc(families, func(family corev1.IPFamily) bool {
			return now[family].LastUpdated.Equal(before[family].LastUpdated)
		}), nil
	})
	return now, err
}

// failure returns why ctx was cancelled, or nil if the caller cancelled it.
func failure(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != ctx.Err() {
		return cause
	}
	return nil
}

// families returns the address families of the cluster, the primary one first. Other families are left
// out, so that they cost nothing.
func (p *Proxy) families() []corev1.IPFamily {
	var families []corev1.IPFamily
	for _, cidr := range p.cfg.Cluster.ServiceCIDRs() {
		if cidr.Addr().Is4() {
			families = append(families, corev1.IPv4Protocol)
		} else if _, err := os.Stat("/proc/net/if_inet6"); err == nil || len(p.cfg.Cluster.ServiceCIDR) == 1 {
			families = append(families, corev1.IPv6Protocol)
		} else {
			p.log.Warn("This kernel has no IPv6: Services have no IPv6 address on this node")
		}
	}
	return families
}
