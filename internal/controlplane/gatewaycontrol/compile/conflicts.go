package compile

import (
	"fmt"
	"slices"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// endpoint is a port with its transport.
type endpoint struct {
	number    gwv1.PortNumber
	transport routing.Transport
}

// claims are the ports that listeners have, by which others are in a conflict with them.
type claims map[endpoint]*claim

// claim is what listeners have of a port.
type claim struct {
	// first is the first listener of the port. All others there are of its family.
	first *listener
	// names has the listeners by host name.
	names map[string]*listener
}

func (l *listener) endpoint() endpoint { return endpoint{l.port, l.transport()} }

// family returns the protocol that a port must be used with: listeners of one family share a
// port if their host names differ. Listeners for HTTPS and for TLS share one by server name.
func (l *listener) family() gwv1.ProtocolType {
	if l.protocol == gwv1.HTTPSProtocolType {
		return gwv1.TLSProtocolType
	}
	return l.protocol
}

// isRaw tells whether the listener takes all of a port.
func (l *listener) isRaw() bool {
	return l.protocol == gwv1.TCPProtocolType || l.protocol == gwv1.UDPProtocolType
}

// add takes a port, or a host name of it.
func (c claims) add(l *listener) {
	taken := c[l.endpoint()]
	if taken == nil {
		taken = &claim{first: l, names: map[string]*listener{}}
		c[l.endpoint()] = taken
	}
	if taken.names[l.hostname] == nil {
		taken.names[l.hostname] = l
	}
}

// against returns the listener that has what another one wants, and the reason of the
// conflict. Listeners of different Gateways may have the same host name, if the node can
// serve the routes of both with the settings of one.
func (c claims) against(l *listener) (*listener, gwv1.ListenerConditionReason) {
	taken := c[l.endpoint()]
	if taken == nil {
		return nil, ""
	}
	if taken.first.family() != l.family() || l.isRaw() {
		return taken.first, gwv1.ListenerReasonProtocolConflict
	}
	if same := taken.names[l.hostname]; same != nil && !(same.gateway != l.gateway && same.mergesWith(l)) {
		return same, gwv1.ListenerReasonHostnameConflict
	}
	return nil, ""
}

// mergesWith tells whether the routes of another listener with the same port and host name
// can be served with the settings of this one. Otherwise a listener that asks clients for a
// certificate would be served by one that does not.
func (l *listener) mergesWith(other *listener) bool {
	return l.protocol == other.protocol && l.tlsMode == other.tlsMode &&
		l.clientAuthorities == other.clientAuthorities && l.insecureFallback == other.insecureFallback
}

// lose marks a listener whose port or host name another Gateway has.
func (l *listener) lose(winner *listener, reason gwv1.ListenerConditionReason) {
	message := conflictMessage(l, winner, reason) + fmt.Sprintf(" of the older Gateway %s/%s, which has the same addresses. "+
		"Use another port, or give this Gateway an address of its own in spec.addresses", winner.gateway.Namespace, winner.gateway.Name)
	l.conflict = faultOf(reason, "%s", message)
	l.accepted = faultOf(gwv1.ListenerReasonPortUnavailable, "%s", message)
}

func conflictMessage(l, with *listener, reason gwv1.ListenerConditionReason) string {
	if reason == gwv1.ListenerReasonHostnameConflict {
		name := "all host names"
		if l.hostname != "" {
			name = "the host name " + l.hostname
		}
		return fmt.Sprintf("port %d with %s belongs to listener %s", l.port, name, with.name)
	}
	return fmt.Sprintf("port %d is used for %s by listener %s", l.port, with.protocol, with.name)
}

// findConflicts finds the listeners of a Gateway and of its listener sets that want the same.
// The Gateway's own come first, then those of older sets. If two listeners of one object want
// the same, neither gets it.
func (g *gateway) findConflicts() {
	taken := claims{}
	taken.takeAll(g.listeners)
	for _, set := range g.sets {
		if !set.refused.is() {
			taken.takeAll(set.listeners)
		}
	}
	g.findOverlaps()
}

// takeAll adds the listeners of one object that are in no conflict.
func (c claims) takeAll(listeners []*listener) {
	var left []*listener
	for _, l := range listeners {
		switch gwv1.ListenerConditionReason(l.accepted.reason) {
		case gwv1.ListenerReasonUnsupportedProtocol, gwv1.ListenerReasonPortUnavailable:
			continue // it costs no other listener
		}
		if winner, reason := c.against(l); winner != nil {
			l.conflict = faultOf(reason, "%s, which comes first", conflictMessage(l, winner, reason))
		} else {
			left = append(left, l)
		}
	}
	mine := claims{}
	for _, l := range left {
		other, reason := mine.against(l)
		if other == nil {
			mine.add(l)
			continue
		}
		for _, each := range left {
			// If protocols differ, no listener of the port can stay.
			if each.endpoint() != l.endpoint() || reason == gwv1.ListenerReasonHostnameConflict && each.hostname != l.hostname {
				continue
			}
			with := l
			if each == l || each.family() == l.family() && each != other {
				with = other
			}
			each.conflict = faultOf(reason, "%s. Neither is served: change one of them", conflictMessage(each, with, reason))
		}
	}
	for _, l := range left {
		if !l.conflict.is() {
			c.add(l)
		}
	}
}

// findOverlaps finds listeners for TLS whose host names overlap at a port. Clients that use
// one connection for several host names can reach the wrong one of them.
func (g *gateway) findOverlaps() {
	byPort := make(map[gwv1.PortNumber][]*listener)
	all := slices.Clone(g.listeners)
	for _, set := range g.sets {
		all = append(all, set.listeners...)
	}
	for _, l := range all {
		if l.tlsMode != "" && !l.conflict.is() && !l.accepted.is() {
			byPort[l.port] = append(byPort[l.port], l)
		}
	}
	for _, listeners := range byPort {
		names := make(map[string]*listener, len(listeners))
		for _, l := range listeners {
			names[l.hostname] = l
		}
		for _, l := range listeners {
			for wider := range hosts.Wider(l.hostname) {
				if other := names[wider]; other != nil {
					l.overlaps, other.overlaps = string(other.name), string(l.name)
				}
			}
		}
	}
}
