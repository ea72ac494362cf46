// Package endpoints finds the endpoints behind a port of a Service, and decides which of them gateways
// may connect to. The packages compile and ingress use it, with the objects that package sources has.
//
// The author of an EndpointSlice chooses its addresses, and the gateway of each node connects to them from
// the network of its node. So an endpoint counts only if its author could reach it himself:
//
//   - It is a pod of the Service's namespace, and the address is the pod's (pods.go).
//   - Or an administrator has allowed its range by a setting (addresses.go).
package endpoints

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// ReasonRefused is the reason of conditions and Events about Found.Refused.
const ReasonRefused = "AddressNotPermitted"

// sliceController is the manager of the EndpointSlices that Kubernetes itself makes of pods.
const sliceController = "endpointslice-controller.k8s.io"

// NameOf returns the name of the backend for a port of a Service.
func NameOf(namespace, service string, port int32) string {
	return namespace + "/" + service + ":" + strconv.Itoa(int(port))
}

// Found are the endpoints of a port of a Service.
type Found struct {
	// Endpoints are sorted. If none is ready, they are those that are terminating and still serve, as
	// with the service proxy.
	Endpoints []netip.AddrPort
	// Refused says which addresses gateways do not connect to, why, and what to do. It is empty if
	// there are none, or if they are only outdated for the moment.
	Refused string
}

// Finder finds endpoints in one run. It asks its functions again in the next one.
type Finder struct {
	Rules
	// Slices returns the EndpointSlices of a Service.
	Slices func(namespace, service string) []*discoveryv1.EndpointSlice
	// Pod and Node return an object, or nil if there is none.
	Pod  func(namespace, name string) *corev1.Pod
	Node func(name string) *corev1.Node
	// Nodes returns all nodes.
	Nodes func() []*corev1.Node
	// Pool returns the name of the LoadBalancerPool that has an address, or "".
	Pool func(netip.Addr) string

	// Pods are the pods that endpoints have named so far, whether they exist or not: the caller has
	// to look again when they change.
	Pods map[types.NamespacedName]bool

	found map[key]Found
	// ranges are the pod CIDRs of nodes, and hosts the addresses of all nodes. They are read when they
	// are needed.
	ranges map[string][]netip.Prefix
	hosts  sets.Set[netip.Addr]
}

// key is a port of a Service.
type key struct {
	namespace, service, port string
	protocol                 corev1.Protocol
}

// Of returns the endpoints of a port of a Service.
func (f *Finder) Of(service *corev1.Service, port *corev1.ServicePort) Found {
	of := key{service.Namespace, service.Name, port.Name, port.Protocol}
	if found, is := f.found[of]; is {
		return found
	}
	found := f.find(service, port)
	if f.found == nil {
		f.found = map[key]Found{}
	}
	f.found[of] = found
	return found
}

func (f *Finder) find(service *corev1.Service, port *corev1.ServicePort) Found {
	var ready, serving []netip.AddrPort
	var refused refusals
	for _, slice := range f.Slices(service.Namespace, service.Name) {
		number := portOf(slice, port)
		if number == 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			isReady, isServing := states(&endpoint.Conditions)
			if len(endpoint.Addresses) == 0 || !isReady && !isServing {
				continue
			}
			address, err := netip.ParseAddr(endpoint.Addresses[0])
			if err != nil {
				continue // the API server refuses such an address
			}
			address = address.Unmap()
			if why := f.refuse(slice, endpoint, address); why.is() {
				refused.add(slice, address, why)
				continue
			}
			if at := netip.AddrPortFrom(address, number); isReady {
				ready = append(ready, at)
			} else {
				serving = append(serving, at)
			}
		}
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return Found{slices.Compact(ready), refused.message()}
}

// Any tells whether a port of a Service has an endpoint, whatever its address is.
func Any(port *corev1.ServicePort, of []*discoveryv1.EndpointSlice) bool {
	for _, slice := range of {
		for i := range slice.Endpoints {
			ready, serving := states(&slice.Endpoints[i].Conditions)
			if (ready || serving) && portOf(slice, port) != 0 {
				return true
			}
		}
	}
	return false
}

// states tells whether an endpoint is ready, and whether it is terminating and still serves.
func states(conditions *discoveryv1.EndpointConditions) (ready, serving bool) {
	return conditions.Ready == nil || *conditions.Ready,
		conditions.Serving != nil && *conditions.Serving && conditions.Terminating != nil && *conditions.Terminating
}

// refusals are the addresses of a port that are refused. Only the first one is told in words.
type refusals struct {
	first string
	more  int
}

func (r *refusals) add(slice *discoveryv1.EndpointSlice, address netip.Addr, why refusal) {
	if why.outdated && slice.Labels[discoveryv1.LabelManagedBy] == sliceController {
		return // the next version of the EndpointSlice is on its way
	}
	if r.first != "" {
		r.more++
		return
	}
	r.first = fmt.Sprintf("the gateway does not connect to %s, an address of EndpointSlice %s/%s, because %s. %s",
		address, slice.Namespace, slice.Name, why.why, why.mend(slice, address))
}

func (r *refusals) message() string {
	if r.more > 0 {
		return fmt.Sprintf("%s. It refuses %d more addresses of the Service", r.first, r.more)
	}
	return r.first
}

// portOf returns the number that a port of a Service has in a slice, or zero.
func portOf(slice *discoveryv1.EndpointSlice, port *corev1.ServicePort) uint16 {
	wanted := cmp.Or(port.Protocol, corev1.ProtocolTCP)
	for _, candidate := range slice.Ports {
		name, protocol := ptr.Deref(candidate.Name, ""), ptr.Deref(candidate.Protocol, corev1.ProtocolTCP)
		if name == port.Name && protocol == wanted && candidate.Port != nil {
			return uint16(*candidate.Port)
		}
	}
	return 0
}
