package compile

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
)

// maxAddresses is how many addresses the status of a Gateway can have.
const maxAddresses = 16

// reach is how far a front is: whether clients can reach it.
type reach struct {
	name types.NamespacedName
	// service is nil if there is none yet.
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// reachOf returns how far a front is.
func (c *compiler) reachOf(name types.NamespacedName) *reach {
	found := c.reaches[name]
	if found == nil {
		c.out.Services[name] = true
		found = &reach{name: name, service: c.in.Service(name.Namespace, name.Name)}
		if found.service != nil {
			found.slices = c.in.Slices(name.Namespace, name.Name)
		}
		c.reaches[name] = found
	}
	return found
}

// addresses returns the addresses of the front.
func (r *reach) addresses() []gwv1.GatewayStatusAddress {
	if r.service == nil {
		return nil
	}
	var found []gwv1.GatewayStatusAddress
	for _, ingress := range r.service.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			found = append(found, gwv1.GatewayStatusAddress{Type: ptr.To(gwv1.IPAddressType), Value: ingress.IP})
		} else if ingress.Hostname != "" {
			found = append(found, gwv1.GatewayStatusAddress{Type: ptr.To(gwv1.HostnameAddressType), Value: ingress.Hostname})
		}
	}
	return found[:min(len(found), maxAddresses)]
}

// missing returns the addresses out of those that a Gateway asks for that the front does not
// have.
func (r *reach) missing(asked []string) []string {
	has := make(map[netip.Addr]bool)
	if r.service != nil {
		for _, ingress := range r.service.Status.LoadBalancer.Ingress {
			if address, err := netip.ParseAddr(ingress.IP); err == nil {
				has[address.Unmap()] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(asked), func(text string) bool {
		address, err := netip.ParseAddr(text)
		return err == nil && has[address.Unmap()]
	})
}

// addressFault says why clients have no address to connect to, or not the ones that the
// Gateway asks for.
func (r *reach) addressFault(asked []string) fault {
	if r.service == nil {
		return faultOf(gwv1.GatewayReasonPending, "the Service %s is yet to be created", r.name)
	}
	missing, assigned, why := r.missing(asked), len(r.addresses()) > 0, r.condition()
	answered := meta.FindStatusCondition(r.service.Status.Conditions, servicelb.Condition) != nil
	switch {
	case len(missing) > 0 && (assigned || answered):
		return faultOf(gwv1.GatewayReasonAddressNotUsable, "the Service %s did not get the address %s of spec.addresses%s",
			r.name, strings.Join(missing, ", "), why)
	case !assigned && why != "":
		return faultOf(gwv1.GatewayReasonAddressNotAssigned, "the Service %s has no address%s", r.name, why)
	case !assigned:
		return faultOf(gwv1.GatewayReasonAddressNotAssigned,
			"the Service %s has no address yet. `kubectl describe service --namespace=%s %s` shows what its load balancer says",
			r.name, r.name.Namespace, r.name.Name)
	}
	return fault{}
}

// condition returns what the load balancer says about the Service, behind a colon, or "".
func (r *reach) condition() string {
	if condition := meta.FindStatusCondition(r.service.Status.Conditions, servicelb.Condition); condition != nil && condition.Message != "" {
		return ": " + condition.Message
	}
	return ""
}

// portCondition says behind a colon why no address serves a port. The load balancer does not know of the host
// ports of pods. The Events of the Service name these, and its message may be about other ports.
func (r *reach) portCondition(at endpoint) string {
	if why := r.condition(); servicelb.IsAbout(why, r.port(at)) {
		return why
	}
	return ": no node listens there yet, or a pod has the host port. An administrator sees in the Events of the Service " + r.name.String() + " which pod"
}

// has tells whether the Service has a port.
func (r *reach) has(at endpoint) bool { return r.port(at) != nil }

// port returns a port of the Service, or nil.
func (r *reach) port(at endpoint) *corev1.ServicePort {
	if r.service == nil {
		return nil
	}
	wanted := corev1.ProtocolTCP
	if at.transport == routing.UDP {
		wanted = corev1.ProtocolUDP
	}
	for i := range r.service.Spec.Ports {
		port := &r.service.Spec.Ports[i]
		if port.Port == int32(at.number) && cmp.Or(port.Protocol, corev1.ProtocolTCP) == wanted {
			return port
		}
	}
	return nil
}

// listens tells whether a node listens on a port of the front.
func (r *reach) listens(at endpoint) bool {
	port := r.port(at)
	return port != nil && endpoints.Any(port, r.slices)
}

// isServed tells whether an address of the front serves a port. Without addresses, it is not known.
func (r *reach) isServed(at endpoint) bool {
	port, addresses := r.port(at), r.service.Status.LoadBalancer.Ingress
	return len(addresses) == 0 || slices.ContainsFunc(addresses, func(address corev1.LoadBalancerIngress) bool {
		return servicelb.Serves(&address, port)
	})
}

// portFault says which port of listeners no node listens on yet, or no address serves.
func (r *reach) portFault(listeners []*listener) fault {
	for _, l := range listeners {
		if l.usable && r.has(l.endpoint()) && !r.isServed(l.endpoint()) {
			return faultOf(gwv1.GatewayReasonPending, "no address serves port %d (%s)%s", l.port, l.transport(), r.portCondition(l.endpoint()))
		}
		if l.usable && !r.listens(l.endpoint()) {
			return faultOf(gwv1.GatewayReasonPending,
				"no node listens on port %d (%s) yet. The annotation gateway.kedge.dev/listening of a Node says what the node listens on",
				l.port, l.transport())
		}
	}
	return fault{}
}
