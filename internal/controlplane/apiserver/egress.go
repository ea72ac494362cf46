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
	// Tunnels reaches the other nodes. If it is nil, everything is dialed directly.
	Tunnels Tunnels
	// NodeName and NodeIPs are this server's own node. They are empty if the server
	// has no node.
	NodeName string
	NodeIPs  []netip.Addr
	// PodCIDRs are the cluster's ranges of pod addresses. An address in them belongs
	// to the node whose spec.podCIDRs contains it, whatever pods say. They are empty
	// if another CNI gives pods their addresses.
	PodCIDRs []netip.Prefix
	// Owner returns the node that is registered with an address. It wins over the
	// addresses in the status of nodes. It is nil if no registrations are known.
	Owner func(netip.Addr) (node string, ok bool)
}

// Tunnels dials HOST:PORT from another node. HOST is the node's name, or an address of
// the node or of one of its pods.
type Tunnels interface {
	Dial(ctx context.Context, node, address string) (net.Conn, error)
}

// dialTimeout is how long a dial may take. It is the value of net/http.DefaultTransport,
// by which upstream dials.
//
//upstream:relies-on std/net/http/transport.go DefaultTransport
const dialTimeout = 30 * time.Second

// egressDialer finds the node of an address and dials through its tunnel. It shares the
// informers of the API server's own Node authorizer.
//
// It believes what a node says of itself and its pods only where that harms nobody
// else: root on one node must not get connections that are meant for another node.
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

// hasSynced tells whether the informers of nodes, and of pods if there is one, have
// synced.
func (d *egressDialer) hasSynced() bool {
	return d.nodes.HasSynced() && (d.pods == nil || d.pods.HasSynced())
}

// DialContext dials addresses on another node through that node's tunnel, and all other
// addresses directly. It fails if several nodes claim the address.
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
		// A node that never answers must not hold a request for ever.
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return d.Tunnels.Dial(ctx, node, address)
	case node != "" && host == d.NodeName:
		address = net.JoinHostPort(d.NodeIPs[0].String(), port)
	}
	return d.direct.DialContext(ctx, network, address)
}

// nodeOf returns the node whose name host is, or to which the address host belongs. It
// returns "" if there is none, and fails if several nodes claim the address.
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

// claimants returns the nodes to which an address may belong.
func (d *egressDialer) claimants(ip netip.Addr) []string {
	if slices.ContainsFunc(d.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }) {
		return d.withRange(ip)
	}
	if !ip.IsGlobalUnicast() {
		return nil // for example of loopback, which is this host, whatever a node says
	}
	var names []string
	if owner, ok := d.owner(ip); ok {
		names = append(names, owner)
	} else {
		// ByIndex fails only if there is no such index.
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

// withRange returns the nodes whose range of pod addresses contains ip. A node does not
// choose its range.
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

// podIPs returns the addresses of a pod. A pod that has ended may have lost its
// addresses to another one, and the addresses of a pod in the host's network are its
// node's: neither has any.
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

// nodeIPs returns the addresses in a node's status.
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

// canonical returns an address in the form of the index, or nothing for a name.
func canonical(text string) []string {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return nil
	}
	return []string{ip.Unmap().WithZone("").String()}
}
