package endpoints

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
)

// Rules are what the settings of the cluster say about addresses.
type Rules struct {
	// OwnPods says that kedge gives pods their addresses: each is in a pod CIDR of its node. Otherwise
	// a network of the user's does.
	OwnPods bool
	// PodRanges and Services are the cluster's ranges.
	PodRanges, Services []netip.Prefix
	// VIP is the address that one of the servers has, or the zero Addr.
	VIP netip.Addr
	// Allowed are the ranges of the setting config.BackendRanges.
	Allowed []netip.Prefix
	// Owner returns the node that is registered with an address.
	Owner func(netip.Addr) (node string, found bool)
}

// refusal says why gateways do not connect to an address. It is zero if they do.
type refusal struct {
	why string
	// never says that no setting allows the address.
	never bool
	// outdated says that the endpoint names a pod that does not have the address now.
	outdated bool
}

func (r refusal) is() bool { return r.why != "" }

// mend says what a user can do.
func (r refusal) mend(slice *discoveryv1.EndpointSlice, address netip.Addr) string {
	if r.never {
		return "No setting allows this: give the Service a selector, so that Kubernetes lists the addresses of its pods"
	}
	return fmt.Sprintf("If it is a pod of namespace %s, give the Service a selector, so that Kubernetes lists its pods. If it is outside the cluster, "+
		"an administrator can allow it by %s: [%s] in the configuration of all servers", slice.Namespace, config.BackendRanges, netip.PrefixFrom(address, address.BitLen()))
}

// refuse decides about an endpoint of a slice.
func (f *Finder) refuse(slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint, address netip.Addr) refusal {
	switch {
	case !routing.MayBeBackend(address):
		return refusal{why: "the address is one of loopback, of the link, of multicast, or one at which a cloud gives nodes their credentials", never: true}
	case contains(f.Services, address):
		return refusal{why: "the address is in the range of Services", never: true}
	}
	pod, outside := f.refusePod(slice, endpoint, address), f.refuseOutside(address)
	if !pod.is() || !outside.is() {
		return refusal{}
	}
	if outside.never {
		pod.why, pod.never = pod.why+", and "+outside.why, true
	}
	return pod
}

// refuseOutside decides about an address that is no pod's.
func (f *Finder) refuseOutside(address netip.Addr) refusal {
	if contains(f.PodRanges, address) {
		return refusal{why: "the address is in the range of pods", never: true}
	}
	if door := f.refuseDoor(address); door.is() {
		return door
	}
	if !contains(f.Allowed, address) {
		return refusal{why: "no setting allows it"}
	}
	return refusal{}
}

// refuseDoor refuses the addresses at which the cluster itself answers clients: those of nodes, and those
// that Services get from pools. Behind the latter there can be the gateway itself, so a connection would
// go in circles.
func (f *Finder) refuseDoor(address netip.Addr) refusal {
	if address == f.VIP || f.isNode(address) {
		return refusal{why: "the address is a node's", never: true}
	}
	if pool := f.Pool(address); pool != "" {
		return refusal{why: "the address is one of LoadBalancerPool " + pool, never: true}
	}
	return refusal{}
}

// isNode tells whether an address is one of a node, or one at which servers answer.
func (f *Finder) isNode(address netip.Addr) bool {
	if f.hosts == nil {
		f.hosts = sets.New[netip.Addr]()
		for _, node := range f.Nodes() {
			f.hosts.Insert(nodeobject.Addresses(node)...)
		}
		// A server need not be a node. Those with an API server are endpoints of this Service.
		for _, slice := range f.Slices(metav1.NamespaceDefault, "kubernetes") {
			f.hosts.Insert(servers.IPs(slice)...)
		}
	}
	_, registered := f.Owner(address)
	return registered || f.hosts.Has(address)
}

// podCIDRs returns the ranges of the pods of a node.
func (f *Finder) podCIDRs(name string) []netip.Prefix {
	if known, is := f.ranges[name]; is {
		return known
	}
	var found []netip.Prefix
	if node := f.Node(name); node != nil {
		for _, text := range node.Spec.PodCIDRs {
			if cidr, err := netip.ParsePrefix(text); err == nil {
				found = append(found, cidr)
			}
		}
	}
	if f.ranges == nil {
		f.ranges = map[string][]netip.Prefix{}
	}
	f.ranges[name] = found
	return found
}

func contains(ranges []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) })
}

// SameNode tells whether nothing has changed of a node that a Finder looks at.
func SameNode(a, b *corev1.Node) bool {
	return slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}
