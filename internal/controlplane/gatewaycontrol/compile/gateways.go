package compile

import (
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// gateway is a Gateway of one of kedge's classes.
type gateway struct {
	object *gwv1.Gateway
	// listeners are the Gateway's own. They do not change after gateways.
	listeners []*listener
	// sets are the listener sets that name this Gateway, older ones first.
	sets []*listenerSet
	// refused says why the Gateway is not accepted, other than for its listeners.
	refused fault
	// unresolved says what is wrong with the certificate for backends.
	unresolved fault
	// clientCertificate is the name of the certificate that backends see, or empty.
	clientCertificate string
	// accepted says that the Gateway serves at least one of its own listeners.
	accepted bool
	// front is the name of the Service that clients connect to.
	front types.NamespacedName
	// labels, annotations and addresses are those of the front, unless it is front.Shared.
	labels, annotations map[string]string
	addresses           []string
}

// isShared tells whether the Gateway shares its front with others.
func (g *gateway) isShared() bool { return g.front == front.Shared }

func (g *gateway) String() string { return g.object.Namespace + "/" + g.object.Name }

// gateways reads the Gateways with their listeners and listener sets.
func (c *compiler) gateways() {
	classes := make(map[gwv1.ObjectName]*gwv1.GatewayClass)
	for _, class := range c.in.Classes {
		if class.Spec.ControllerName == Controller {
			classes[gwv1.ObjectName(class.Name)] = class
		}
	}
	sets := c.setsByGateway()
	for _, object := range byAge(c.in.Gateways) {
		class := classes[object.Spec.GatewayClassName]
		if class == nil {
			continue
		}
		g := c.newGateway(object, class)
		g.sets = c.newListenerSets(g, sets[types.NamespacedName{Namespace: object.Namespace, Name: object.Name}])
		g.findConflicts()
		c.ordered = append(c.ordered, g)
		c.gatewayOf[object] = g
	}
}

// decide decides which listeners are served.
func (c *compiler) decide() {
	shared := claims{}
	for _, g := range c.ordered {
		c.refuseHosts(g)
		g.decide(shared)
		if g.accepted && g.clientCertificate != "" {
			c.clientCertificates[g.object] = g.clientCertificate
		}
		c.listeners = append(c.listeners, g.listeners...)
		for _, set := range g.sets {
			c.listeners = append(c.listeners, set.listeners...)
		}
	}
}

// byAge returns objects in the order of precedence: older ones first, and then by name.
func byAge[T metav1.Object](objects []T) []T {
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b T) int { return compareAge(a, b) })
	return sorted
}

// newGateway reads a Gateway.
func (c *compiler) newGateway(object *gwv1.Gateway, class *gwv1.GatewayClass) *gateway {
	g := &gateway{object: object}
	g.refused = refusal(object, class)
	c.chooseFront(g)
	if tls := object.Spec.TLS; tls != nil && tls.Backend != nil && tls.Backend.ClientCertificateRef != nil {
		from := referrer{kind: "Gateway", namespace: object.Namespace}
		g.clientCertificate, g.unresolved = c.certificate(from, tls.Backend.ClientCertificateRef, string(gwv1.GatewayReasonInvalidClientCertificateRef))
	}
	for i := range object.Spec.Listeners {
		g.listeners = append(g.listeners, c.newListener(g, nil, &object.Spec.Listeners[i]))
	}
	return g
}

// refusal says why a Gateway is not accepted, before its listeners are looked at.
func refusal(object *gwv1.Gateway, class *gwv1.GatewayClass) fault {
	if class.Spec.ParametersRef != nil {
		return faultOf(gwv1.GatewayReasonInvalid, "the GatewayClass %s is not accepted: its conditions say why", class.Name)
	}
	if infrastructure := object.Spec.Infrastructure; infrastructure != nil && infrastructure.ParametersRef != nil {
		return faultOf(gwv1.GatewayReasonInvalidParameters,
			"kedge has no parameters for Gateways: remove spec.infrastructure.parametersRef. Annotations in spec.infrastructure have the settings")
	}
	for i := range object.Spec.Addresses {
		address := &object.Spec.Addresses[i]
		if kind := ptr.Deref(address.Type, gwv1.IPAddressType); kind != gwv1.IPAddressType {
			return faultOf(gwv1.GatewayReasonUnsupportedAddress,
				"kedge cannot give a Gateway an address of the type %s: use the type %s in spec.addresses", kind, gwv1.IPAddressType)
		}
		if _, err := netip.ParseAddr(address.Value); address.Value != "" && err != nil {
			return faultOf(gwv1.GatewayReasonUnsupportedAddress, "%q in spec.addresses is not an IP address", address.Value)
		}
	}
	return fault{}
}

// chooseFront decides whether a Gateway has a Service of its own.
func (c *compiler) chooseFront(g *gateway) {
	spec := &g.object.Spec
	g.labels, g.annotations = map[string]string{}, map[string]string{}
	if spec.Infrastructure != nil {
		for key, value := range spec.Infrastructure.Labels {
			g.labels[string(key)] = string(value)
		}
		for key, value := range spec.Infrastructure.Annotations {
			g.annotations[string(key)] = string(value)
		}
	}
	maps.Copy(g.labels, map[string]string{
		gwv1.GatewayNameLabelKey:      shortName(g.object.Name),
		gwv1.GatewayClassNameLabelKey: shortName(string(spec.GatewayClassName)),
	})
	for i := range spec.Addresses {
		if address := spec.Addresses[i].Value; address != "" {
			g.addresses = append(g.addresses, address)
		}
	}
	g.front = front.Shared
	if len(g.addresses) > 0 || g.annotations[servicelb.PoolAnnotation] != "" || c.in.Offered(g.object.Namespace, g.labels) {
		g.front = types.NamespacedName{Namespace: g.object.Namespace, Name: serviceName(g.object.Name)}
	}
}

// decide says which listeners are served. Gateways that share a front cannot all use a port
// as they like: the older one wins, and has its claims in shared.
func (g *gateway) decide(shared claims) {
	if g.refused.is() {
		return
	}
	taken := shared
	if !g.isShared() {
		taken = claims{}
	}
	serve := func(listeners []*listener) (serves bool) {
		for _, l := range listeners {
			if l.canServe() {
				winner, reason := shared.against(l)
				switch {
				case g.isShared() && winner != nil:
					l.lose(winner, reason)
				case taken[l.endpoint()] == nil && len(taken) >= maxPorts:
					l.accepted = g.noPortLeft(l)
				default:
					taken.add(l)
				}
			}
			l.usable = l.canServe()
			serves = serves || l.usable
		}
		return serves
	}
	if g.accepted = serve(g.listeners); !g.accepted {
		return
	}
	for _, set := range g.sets {
		if !set.refused.is() {
			set.accepted = serve(set.listeners)
		}
	}
}

// noPortLeft says that the front of a Gateway has as many ports as it may have.
func (g *gateway) noPortLeft(l *listener) fault {
	if g.isShared() {
		return faultOf(gwv1.ListenerReasonPortUnavailable, "port %d is not available: the Gateways without an address of their own have %d ports already, "+
			"the most that they can have together. Use a port that one of them has, or give this Gateway an address in spec.addresses", l.port, maxPorts)
	}
	return faultOf(gwv1.ListenerReasonPortUnavailable,
		"port %d is not available: a Gateway and its ListenerSets can have %d ports together. Use a port that is there, or another Gateway", l.port, maxPorts)
}
