package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kedge-dev/kedge/internal/objectcache"
)

// Egress is how the API server reaches nodes and pods.
type Egress struct {
	// Tunnels reaches the other nodes. Nil dials everything directly.
	Tunnels Tunnels
	// NodeName and NodeIPs are this server's own node; none if it has no node.
	NodeName string
	NodeIPs  []netip.Addr
}

// Tunnels dials addresses from nodes other than this one: HOST:PORT, where HOST
// is the node's name or an address of the node or one of its pods.
type Tunnels interface {
	Dial(ctx context.Context, node, address string) (net.Conn, error)
}

// newAPIServerConfig is NewConfig of cmd/kube-apiserver/app/config.go, with an
// egress selector that is a function in this process: upstream's would have to
// be reached through a socket. One the user configures goes before. The API
// server calls itself by loopback, and its informers are the cache's, which
// end with ctx.
func newAPIServerConfig(ctx context.Context, opts options.CompletedOptions, egress Egress, loopback http.RoundTripper) (*app.Config, *objectcache.Cache, error) {
	generic, storage, objects, err := newGenericConfig(ctx, opts, loopback)
	if err != nil {
		return nil, nil, err
	}
	informers := objects.View(ctx, objectcache.Options{Resync: apiServerResync})
	if err := applyReaders(opts, generic, informers); err != nil {
		return nil, nil, err
	}
	if generic.EgressSelector == nil && egress.Tunnels != nil {
		dialer, err := newEgressDialer(egress, informers.Core().V1())
		if err != nil {
			return nil, nil, err
		}
		generic.EgressSelector = egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{
			egressselector.Cluster: dialer.DialContext,
		})
	}
	kubeAPIs, resolver, initializer, err := app.CreateKubeAPIServerConfig(opts, generic, informers, storage)
	if err != nil {
		return nil, nil, err
	}
	core := kubeAPIs.ControlPlane
	apiExtensions, err := controlplaneapiserver.CreateAPIExtensionsConfig(*core.Generic, core.VersionedInformers, initializer,
		opts.CompletedOptions, opts.MasterCount, resolver,
		webhook.NewDefaultAuthenticationInfoResolverWrapper(core.ProxyTransport, core.Generic.EgressSelector, core.Generic.LoopbackClientConfig, core.Generic.TracerProvider))
	if err != nil {
		return nil, nil, err
	}
	aggregator, err := controlplaneapiserver.CreateAggregatorConfig(*core.Generic, opts.CompletedOptions, core.VersionedInformers,
		resolver, core.ProxyTransport, core.Extra.PeerProxy, initializer)
	if err != nil {
		return nil, nil, err
	}
	leanOpenAPI(core.Generic, &apiExtensions.GenericConfig.Config, &aggregator.GenericConfig.Config)
	return &app.Config{Options: opts, KubeAPIs: kubeAPIs, ApiExtensions: apiExtensions, Aggregator: aggregator}, objects, nil
}

// egressDialer finds the node of an address and dials through its tunnel. It
// shares the informers of the API server's own Node authorizer.
type egressDialer struct {
	Egress
	pods, nodes cache.SharedIndexInformer
	direct      net.Dialer
}

// byIP is the name of an index of pods, and of nodes, by their addresses.
const byIP = "kedge-ip"

func newEgressDialer(egress Egress, informers coreinformers.Interface) (*egressDialer, error) {
	d := &egressDialer{
		Egress: egress,
		pods:   informers.Pods().Informer(),
		nodes:  informers.Nodes().Informer(),
		// The values of net/http.DefaultTransport, upstream's own dialer.
		direct: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second},
	}
	if err := d.pods.AddIndexers(cache.Indexers{byIP: podIPs}); err != nil {
		return nil, fmt.Errorf("index pods: %w", err)
	}
	if err := d.nodes.AddIndexers(cache.Indexers{byIP: nodeIPs}); err != nil {
		return nil, fmt.Errorf("index nodes: %w", err)
	}
	return d, nil
}

// DialContext dials what is on another node through that node's tunnel, and
// everything else directly.
func (d *egressDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), d.pods.HasSynced, d.nodes.HasSynced) {
		return nil, fmt.Errorf("dial %s: wait until its node is known: %w", address, context.Cause(ctx))
	}
	switch node := d.nodeOf(host); {
	case node != "" && node != d.NodeName:
		return d.Tunnels.Dial(ctx, node, address)
	case host == d.NodeName && node != "":
		address = net.JoinHostPort(d.NodeIPs[0].String(), port)
	}
	return d.direct.DialContext(ctx, network, address)
}

// nodeOf returns the node whose name or address host is, or the address of a
// pod of; or nothing.
func (d *egressDialer) nodeOf(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		if _, found, err := d.nodes.GetIndexer().GetByKey(host); err != nil || !found {
			return ""
		}
		return host
	}
	ip = ip.Unmap()
	if slices.Contains(d.NodeIPs, ip) {
		return d.NodeName
	}
	// An index that was added has no errors to return.
	pods, _ := d.pods.GetIndexer().ByIndex(byIP, ip.String())
	for i, pod := range pods {
		node := pod.(*corev1.Pod).Spec.NodeName
		// A node writes its pods' status, but not which range is its own: none
		// can draw another's traffic to itself.
		if i == len(pods)-1 || d.hasRange(node, ip) {
			return node
		}
	}
	nodes, _ := d.nodes.GetIndexer().ByIndex(byIP, ip.String())
	if len(nodes) == 0 {
		return ""
	}
	return nodes[0].(*corev1.Node).Name
}

// hasRange tells whether ip is in a node's range of pod addresses.
func (d *egressDialer) hasRange(name string, ip netip.Addr) bool {
	object, found, err := d.nodes.GetIndexer().GetByKey(name)
	return err == nil && found && slices.ContainsFunc(object.(*corev1.Node).Spec.PodCIDRs, func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		return err == nil && prefix.Contains(ip)
	})
}

// podIPs returns the addresses of a pod that may still be its own.
func podIPs(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, nil
	}
	var ips []string
	for _, podIP := range pod.Status.PodIPs {
		ips = append(ips, canonical(podIP.IP)...)
	}
	return ips, nil
}

func nodeIPs(object any) ([]string, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return nil, nil
	}
	var ips []string
	for _, address := range node.Status.Addresses {
		ips = append(ips, canonical(address.Address)...)
	}
	return ips, nil
}

// canonical returns the one way to write an address, or nothing for a name.
func canonical(text string) []string {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	return []string{ip.Unmap().String()}
}
