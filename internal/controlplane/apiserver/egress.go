package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Egress is how the API server reaches nodes and pods.
type Egress struct {
	// Tunnels reaches the other nodes. Nil dials everything directly.
	Tunnels Tunnels
	// NodeName and NodeIPs are this server's own node; none if it has no node.
	NodeName string
	NodeIPs  []netip.Addr
	// PodCIDRs bound the addresses of pods: each is of the node whose
	// spec.podCIDRs has it, whatever pods say. None if another CNI gives them.
	PodCIDRs []netip.Prefix
	// Owner returns the node that is registered with an address. It goes before
	// what nodes say of themselves. Nil if no registrations are known.
	Owner func(netip.Addr) (node string, ok bool)
}

// Tunnels dials addresses from nodes other than this one: HOST:PORT, where HOST
// is the node's name or an address of the node or one of its pods.
type Tunnels interface {
	Dial(ctx context.Context, node, address string) (net.Conn, error)
}

// dialTimeout is how long a connection may take to be made: the value of
// net/http.DefaultTransport, upstream's own dialer.
const dialTimeout = 30 * time.Second

// egressDialer finds the node of an address and dials through its tunnel. It
// shares the informers of the API server's own Node authorizer.
//
// What a node says of itself and its pods is believed only where nobody else can
// be harmed: root on one node must not get the connections that are meant for
// another one.
type egressDialer struct {
	Egress
	nodes cache.SharedIndexInformer
	// pods is nil if the addresses of pods are known by Egress.PodCIDRs.
	pods   cache.SharedIndexInformer
	direct net.Dialer
}

// byIP is the name of an index of pods, and of nodes, by their addresses.
const byIP = "kedge-ip"

func newEgressDialer(egress Egress, informers coreinformers.Interface) (*egressDialer, error) {
	d := &egressDialer{
		Egress: egress,
		nodes:  informers.Nodes().Informer(),
		direct: net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second},
	}
	if err := d.nodes.AddIndexers(cache.Indexers{byIP: nodeIPs}); err != nil {
		return nil, fmt.Errorf("index nodes: %w", err)
	}
	if len(d.PodCIDRs) > 0 {
		return d, nil
	}
	d.pods = informers.Pods().Informer()
	if err := d.pods.AddIndexers(cache.Indexers{byIP: podIPs}); err != nil {
		return nil, fmt.Errorf("index pods: %w", err)
	}
	return d, nil
}

// hasSynced tells whether nodes, and pods where they matter, are known.
func (d *egressDialer) hasSynced() bool {
	return d.nodes.HasSynced() && (d.pods == nil || d.pods.HasSynced())
}

// DialContext dials what is on another node through that node's tunnel, and
// everything else directly. It fails if several nodes claim the address.
func (d *egressDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), d.hasSynced) {
		return nil, fmt.Errorf("dial %s: wait until its node is known: %w", address, context.Cause(ctx))
	}
	node, err := d.nodeOf(host)
	switch {
	case err != nil:
		return nil, fmt.Errorf("dial %s: %w", address, err)
	case node != "" && node != d.NodeName:
		// A node that never answers must not hold a request for good.
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return d.Tunnels.Dial(ctx, node, address)
	case node != "" && host == d.NodeName:
		address = net.JoinHostPort(d.NodeIPs[0].String(), port)
	}
	return d.direct.DialContext(ctx, network, address)
}

// nodeOf returns the node whose name or address host is, or the address of a
// pod of; or nothing. It fails if it cannot know which of several it is.
func (d *egressDialer) nodeOf(host string) (string, error) {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		if _, found, err := d.nodes.GetIndexer().GetByKey(host); host != d.NodeName && (err != nil || !found) {
			return "", nil
		}
		return host, nil
	}
	ip = ip.Unmap().WithZone("")
	if slices.Contains(d.NodeIPs, ip) {
		return d.NodeName, nil
	}
	claimants := d.claimants(ip)
	slices.Sort(claimants)
	switch claimants = slices.Compact(claimants); len(claimants) {
	case 0:
		return "", nil
	case 1:
		return claimants[0], nil
	}
	return "", fmt.Errorf("nodes %s all claim the address %s: remove the wrong ones (kubectl delete node NAME)",
		strings.Join(claimants, ", "), ip)
}

// claimants returns the nodes that an address may be of.
func (d *egressDialer) claimants(ip netip.Addr) []string {
	if slices.ContainsFunc(d.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return d.withRange(ip)
	}
	if !ip.IsGlobalUnicast() {
		return nil // of this host, whatever a node says
	}
	var names []string
	if owner, ok := d.owner(ip); ok {
		names = append(names, owner)
	} else {
		// An index that was added has no errors to return.
		nodes, _ := d.nodes.GetIndexer().ByIndex(byIP, ip.String())
		for _, node := range nodes {
			names = append(names, node.(*corev1.Node).Name)
		}
	}
	if d.pods != nil {
		pods, _ := d.pods.GetIndexer().ByIndex(byIP, ip.String())
		for _, pod := range pods {
			names = append(names, pod.(*corev1.Pod).Spec.NodeName)
		}
	}
	return names
}

// owner returns the node that is registered with an address.
func (d *egressDialer) owner(ip netip.Addr) (string, bool) {
	if d.Owner == nil {
		return "", false
	}
	return d.Owner(ip)
}

// withRange returns the nodes whose range of pod addresses has ip. A node does
// not choose its range.
func (d *egressDialer) withRange(ip netip.Addr) []string {
	var names []string
	for _, object := range d.nodes.GetIndexer().List() {
		node := object.(*corev1.Node)
		if slices.ContainsFunc(node.Spec.PodCIDRs, func(cidr string) bool {
			prefix, err := netip.ParsePrefix(cidr)
			return err == nil && prefix.Contains(ip)
		}) {
			names = append(names, node.Name)
		}
	}
	return names
}

// podIPs returns the addresses of a pod that may still be its own. A pod in the
// host's network has none: they are its node's.
func podIPs(object any) ([]string, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
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
	return []string{ip.Unmap().WithZone("").String()}
}
