package compile

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// refusedPort says why a listener of front.Shared cannot have its port, or nothing. Such ports
// belong to all namespaces together, so a listener gets only what leaves room for others: a host
// name of a port that all use in the same way, or a port that an administrator has opened.
func (c *compiler) refusedPort(l *listener) fault {
	const mend = "or give this Gateway an address of its own in spec.addresses"
	switch {
	case slices.Contains(c.in.Ports, uint16(l.port)):
		return fault{}
	case l.port == front.PlainPort:
		if l.protocol != gwv1.HTTPProtocolType {
			return faultOf(gwv1.ListenerReasonPortUnavailable, "port %d is for HTTP on the addresses that all Gateways and Ingresses share, and this listener wants %s. "+
				"Use the protocol HTTP, %s", l.port, l.protocol, mend)
		}
	case l.port == front.SecurePort:
		if l.protocol != gwv1.HTTPSProtocolType && l.protocol != gwv1.TLSProtocolType {
			return faultOf(gwv1.ListenerReasonPortUnavailable, "port %d is for HTTPS and TLS on the addresses that all Gateways and Ingresses share, and this listener wants %s. "+
				"Use the protocol HTTPS or TLS, %s", l.port, l.protocol, mend)
		}
	default:
		return faultOf(gwv1.ListenerReasonPortUnavailable, "port %d is not open on the addresses that all Gateways and Ingresses share. "+
			"Use port %d or %d, let an administrator set gateway-ports: [%d] on the servers, %s", l.port, front.PlainPort, front.SecurePort, l.port, mend)
	}
	return fault{}
}

// Claims returns the hosts of front.Shared that Gateways want: the host names of listeners, and
// those of the routes that may attach to them. All belong to the namespace of the Gateway, which
// decides whose routes and listener sets it takes.
func (r *Run) Claims() []hosts.Claim {
	c := r.c
	var claims []hosts.Claim
	byParent := map[parent][]*listener{}
	for _, g := range c.ordered {
		if g.refused.is() || !g.isShared() {
			continue
		}
		for l := range g.all() {
			if l.accepted.is() || l.conflict.is() || l.isRaw() {
				continue
			}
			byParent[l.parentKey()] = append(byParent[l.parentKey()], l)
			if l.hostname != "" {
				claims = append(claims, l.claim(l.hostname, l.parentKind(), l.parent().(hosts.Object)))
			}
		}
	}
	if len(byParent) == 0 {
		return nil
	}
	for _, r := range c.allRoutes() {
		claims = append(claims, c.claimsOf(r, byParent)...)
	}
	return claims
}

// claimsOf returns the hosts that a route wants on listeners. A route may want one host on many
// listeners of a namespace. claimsOf then returns only the oldest of these claims.
func (c *compiler) claimsOf(r *route, byParent map[parent][]*listener) (claims []hosts.Claim) {
	if r.badHostname().is() {
		return nil
	}
	object, is := r.object.(hosts.Object)
	if !is {
		return nil
	}
	type tenantHost struct{ namespace, host string }
	oldest := map[tenantHost]int{}
	for i := range r.parents {
		ref := &r.parents[i]
		found, _ := c.candidates(r, ref, byParent[parentOf(ref, r.object.GetNamespace())])
		for _, l := range found {
			for _, hostname := range r.effective(l) {
				if hostname != "" && hostname == l.hostname {
					continue
				}
				claim := l.claim(hostname, string(r.kind), object)
				at, known := oldest[tenantHost{claim.Namespace, hostname}]
				switch {
				case !known:
					oldest[tenantHost{claim.Namespace, hostname}] = len(claims)
					claims = append(claims, claim)
				case claim.Since.Before(claims[at].Since):
					claims[at] = claim
				}
			}
		}
	}
	return claims
}

// claim returns a claim of the namespace of the Gateway. object names the host.
func (l *listener) claim(host, kind string, object hosts.Object) hosts.Claim {
	since := l.gateway.CreationTimestamp.Time
	for _, needed := range []metav1.Object{l.parent(), object} {
		if made := needed.GetCreationTimestamp().Time; made.After(since) {
			since = made
		}
	}
	return hosts.Claim{Host: host, Namespace: l.gateway.Namespace, Kind: kind, Object: object, Since: since}
}

// refuseHosts refuses the listeners of a Gateway whose host names are another namespace's.
func (c *compiler) refuseHosts(g *gateway) {
	for l := range g.all() {
		if !l.shared || l.hostname == "" {
			continue
		}
		if refusal := c.owners.Refusal(l.gateway.Namespace, l.hostname); refusal != nil && !l.conflict.is() {
			l.conflict = faultOf(gwv1.ListenerReasonHostnameConflict, "%s", refusal.Loser())
		}
	}
}

// refusedHosts says which host names of a route are another namespace's on a listener. some tells
// whether there are others, which are served.
func (c *compiler) refusedHosts(r *route, l *listener) (wrong fault, some bool) {
	if !l.shared || l.isRaw() {
		return fault{}, true
	}
	for _, hostname := range r.effective(l) {
		if refusal := c.owners.Refusal(l.gateway.Namespace, hostname); refusal != nil {
			wrong = wrong.and(faultOf(hostnameConflict, "%s", refusal.Loser()))
		} else {
			some = true
		}
	}
	return wrong, some
}
