package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// maxPorts is how many ports the listeners of a front may have. Each takes a node port, of which
// a cluster has 2768 by default, and one with HTTPS takes a second one for HTTP/3.
const maxPorts = 64

// fronts makes the Services with what is behind their ports. There is a front for each Gateway,
// also while none of its listeners is served: its Service keeps its addresses.
func (c *compiler) fronts() {
	made := make(map[types.NamespacedName]*frontMaker)
	var order []*frontMaker
	for _, g := range c.ordered {
		maker := made[g.front]
		if maker == nil {
			maker = newFrontMaker(g)
			made[g.front] = maker
			order = append(order, maker)
		}
		for l := range g.all() {
			if !l.usable {
				continue
			}
			maker.add(l)
			for _, name := range l.certificates {
				c.serve(name)
			}
		}
	}
	for _, maker := range order {
		maker.addQUIC()
	}
	for _, g := range c.ordered {
		for l := range g.all() {
			if !l.usable && l.mayHavePort() {
				made[g.front].keep(l, c.reachOf(g.front))
			}
		}
	}
	for _, maker := range order {
		c.out.Fronts = append(c.out.Fronts, maker.finish())
	}
}

// all yields the listeners of a Gateway and of its listener sets, in the order of precedence.
func (g *gateway) all() iter.Seq[*listener] {
	return func(yield func(*listener) bool) {
		for _, l := range g.listeners {
			if !yield(l) {
				return
			}
		}
		for _, set := range g.sets {
			for _, l := range set.listeners {
				if !set.refused.is() && !yield(l) {
					return
				}
			}
		}
	}
}

// mayHavePort tells whether a listener that is not served could have its port: what is wrong
// with it lies elsewhere.
func (l *listener) mayHavePort() bool {
	return !l.conflict.is() && kindsOf(l.protocol, l.tlsMode) != nil && l.accepted.reason != string(gwv1.ListenerReasonPortUnavailable)
}

// frontMaker makes a front.
type frontMaker struct {
	front front.Front
	ports map[endpoint]*front.Port
}

func newFrontMaker(g *gateway) *frontMaker {
	made := front.Front{Name: g.front}
	if !g.isShared() {
		made.Gateway, made.Labels, made.Annotations, made.Addresses = g.object, g.labels, g.annotations, g.addresses
	}
	return &frontMaker{front: made, ports: map[endpoint]*front.Port{}}
}

// add puts a listener behind its port. Listeners are added in the order of precedence.
func (m *frontMaker) add(l *listener) {
	port := m.ports[l.endpoint()]
	if port == nil {
		port = &front.Port{Number: uint16(l.port), Transport: l.transport()}
		m.ports[l.endpoint()] = port
	}
	added := front.Listener{Namespace: l.gateway.Namespace, Listener: routing.Listener{
		Name: l.String(), Protocol: protocolOf(l), Hostname: l.hostname, Certificates: l.certificates,
		ClientAuthorities: l.clientAuthorities, AllowInsecureFallback: l.insecureFallback, Routes: slices.Clone(l.routes),
	}}
	// Of listeners with the same host name, the node shows the certificates of the first. So
	// the first one gets those of the others, too.
	for i := range port.Listeners {
		if first := &port.Listeners[i]; first.Hostname == l.hostname {
			for _, name := range l.certificates {
				if !slices.Contains(first.Certificates, name) {
					first.Certificates = append(slices.Clip(first.Certificates), name)
				}
			}
			break
		}
	}
	port.Listeners = append(port.Listeners, added)
}

// addQUIC adds HTTP/3 beside HTTPS.
func (m *frontMaker) addQUIC() {
	for at, port := range maps.Clone(m.ports) {
		beside := endpoint{at.number, routing.UDP}
		if at.transport == routing.UDP || m.ports[beside] != nil {
			continue // somebody's own UDP listener has the port
		}
		quic := &front.Port{Number: port.Number, Transport: routing.UDP, HTTP3: true}
		for _, l := range port.Listeners {
			if l.Protocol == routing.HTTPS {
				quic.Listeners = append(quic.Listeners, l)
			}
		}
		if len(quic.Listeners) > 0 {
			port.HTTP3 = true
			m.ports[beside] = quic
		}
	}
}

// keep keeps the ports that the Service already has for a listener that is not served, so that
// they are the same when it is served again. Nothing is behind them.
func (m *frontMaker) keep(l *listener, reached *reach) {
	wanted := []endpoint{l.endpoint()}
	if l.protocol == gwv1.HTTPSProtocolType {
		wanted = append(wanted, endpoint{l.port, routing.UDP})
	}
	for _, at := range wanted {
		if m.ports[at] == nil && len(m.ports) < 2*maxPorts && reached.has(at) {
			m.ports[at] = &front.Port{Number: uint16(at.number), Transport: at.transport}
		}
	}
}

// finish returns the front.
func (m *frontMaker) finish() front.Front {
	for _, port := range m.ports {
		m.front.Ports = append(m.front.Ports, *port)
	}
	slices.SortFunc(m.front.Ports, func(a, b front.Port) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Transport, b.Transport))
	})
	return m.front
}

func protocolOf(l *listener) routing.Protocol {
	switch {
	case l.protocol == gwv1.HTTPSProtocolType:
		return routing.HTTPS
	case l.protocol == gwv1.TLSProtocolType && l.tlsMode == gwv1.TLSModePassthrough:
		return routing.TLSPassthrough
	case l.protocol == gwv1.TLSProtocolType:
		return routing.TLSTerminate
	case l.protocol == gwv1.TCPProtocolType:
		return routing.RawTCP
	case l.protocol == gwv1.UDPProtocolType:
		return routing.RawUDP
	}
	return routing.HTTP
}

// serviceName returns the name of the Service of a Gateway. Names of Gateways can be longer
// than those of Services, and have dots.
func serviceName(gateway string) string {
	const suffix = "-kedge"
	if name := gateway + suffix; len(validation.IsDNS1035Label(name)) == 0 {
		return name
	}
	name := "gateway-" + strings.ReplaceAll(gateway, ".", "-")
	return cut(name, gateway, validation.DNS1035LabelMaxLength-len(suffix)) + suffix
}

// shortName returns a name of an object as the value of a label.
func shortName(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	return cut(name, name, validation.LabelValueMaxLength)
}

// cut shortens a text so that it ends with a hash of a name, and has at most so many bytes.
func cut(text, name string, most int) string {
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:5])
	return strings.TrimRight(text[:min(len(text), most-len(hash))], "-.") + hash
}
