package compile

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// These are the kinds of routes.
const (
	httpRoute gwv1.Kind = "HTTPRoute"
	grpcRoute gwv1.Kind = "GRPCRoute"
	tlsRoute  gwv1.Kind = "TLSRoute"
	tcpRoute  gwv1.Kind = "TCPRoute"
	udpRoute  gwv1.Kind = "UDPRoute"
)

// hostnameConflict is the reason of routes that are refused because an older route of another
// kind has their host names. The specification demands the refusal, and names no reason.
const hostnameConflict gwv1.RouteConditionReason = "HostnameConflict"

// route is a route object of any kind.
type route struct {
	kind      gwv1.Kind
	object    metav1.Object
	parents   []gwv1.ParentReference
	status    []gwv1.RouteParentStatus
	hostnames []gwv1.Hostname
	// translate works out what the rules mean, and report takes the new status.
	translate func(*translation)
	report    func(gwv1.RouteStatus)
	// translations are what translate has found so far: mostly one.
	translations []*translation
	// named is what name has returned.
	named string
}

// name is the name of the route in State, in the access log and in metrics.
func (r *route) name() string {
	if r.named == "" {
		r.named = string(r.kind) + "/" + r.object.GetNamespace() + "/" + r.object.GetName()
	}
	return r.named
}

// precedes says which of two routes comes first, as all kinds of routes demand it.
func precedes(a, b *route) int {
	return cmp.Or(compareAge(a.object, b.object), cmp.Compare(a.kind, b.kind))
}

// compareAge says which of two objects takes precedence: the older one, and then the one whose
// NAMESPACE/NAME comes first.
func compareAge(a, b metav1.Object) int {
	if order := a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time); order != 0 {
		return order
	}
	return kinds.CompareNames(a, b)
}

// routes attaches the routes to the listeners, and says in their status what became of them.
func (c *compiler) routes() {
	a := &attaching{compiler: c, byParent: c.byParent(), claims: map[*listener]map[gwv1.Kind]*names{}, taken: map[*listener]bool{}}
	all := c.allRoutes()
	slices.SortStableFunc(all, precedes)
	for _, r := range all {
		a.attach(r)
	}
	c.reportPolicies()
}

// allRoutes returns the routes of all kinds.
func (c *compiler) allRoutes() []*route {
	var all []*route
	for _, o := range c.in.HTTPRoutes {
		all = append(all, &route{
			kind: httpRoute, object: o, parents: o.Spec.ParentRefs, status: o.Status.Parents, hostnames: o.Spec.Hostnames,
			translate: func(t *translation) { t.http(o.Spec.Rules) },
			report:    func(s gwv1.RouteStatus) { c.out.HTTPRoutes[o] = &gwv1.HTTPRouteStatus{RouteStatus: s} },
		})
	}
	for _, o := range c.in.GRPCRoutes {
		all = append(all, &route{
			kind: grpcRoute, object: o, parents: o.Spec.ParentRefs, status: o.Status.Parents, hostnames: o.Spec.Hostnames,
			translate: func(t *translation) { t.grpc(o.Spec.Rules) },
			report:    func(s gwv1.RouteStatus) { c.out.GRPCRoutes[o] = &gwv1.GRPCRouteStatus{RouteStatus: s} },
		})
	}
	for _, o := range c.in.TLSRoutes {
		all = append(all, &route{
			kind: tlsRoute, object: o, parents: o.Spec.ParentRefs, status: o.Status.Parents, hostnames: o.Spec.Hostnames,
			translate: func(t *translation) { t.tls(o.Spec.Rules) },
			report:    func(s gwv1.RouteStatus) { c.out.TLSRoutes[o] = &gwv1.TLSRouteStatus{RouteStatus: s} },
		})
	}
	for _, o := range c.in.TCPRoutes {
		all = append(all, &route{
			kind: tcpRoute, object: o, parents: o.Spec.ParentRefs, status: o.Status.Parents,
			translate: func(t *translation) { t.tcp(o.Spec.Rules) },
			report:    func(s gwv1.RouteStatus) { c.out.TCPRoutes[o] = &gwv1.TCPRouteStatus{RouteStatus: s} },
		})
	}
	for _, o := range c.in.UDPRoutes {
		all = append(all, &route{
			kind: udpRoute, object: o, parents: o.Spec.ParentRefs, status: o.Status.Parents,
			translate: func(t *translation) { t.udp(o.Spec.Rules) },
			report:    func(s gwv1.RouteStatus) { c.out.UDPRoutes[o] = &gwv1.UDPRouteStatus{RouteStatus: s} },
		})
	}
	return all
}

// parent is an object that routes refer to.
type parent struct {
	kind            gwv1.Kind
	namespace, name string
}

func (p parent) String() string { return string(p.kind) + " " + p.namespace + "/" + p.name }

// byParent returns the listeners of each Gateway and listener set that is kedge's. A Gateway
// does not have the listeners of its sets: routes refer to the set.
func (c *compiler) byParent() map[parent][]*listener {
	found := map[parent][]*listener{}
	for object := range c.gatewayOf {
		found[parent{"Gateway", object.Namespace, object.Name}] = nil
	}
	for _, l := range c.listeners {
		found[l.parentKey()] = append(found[l.parentKey()], l)
	}
	return found
}

// parentKey returns the object that routes name to attach to the listener.
func (l *listener) parentKey() parent {
	return parent{gwv1.Kind(l.parentKind()), l.parentNamespace(), l.parent().GetName()}
}

// parentOf returns what a reference of a route in a namespace means. References to objects
// that are no parents of routes mean nothing that kedge has.
func parentOf(ref *gwv1.ParentReference, namespace string) parent {
	if ptr.Deref(ref.Group, gwv1.GroupName) != gwv1.GroupName {
		return parent{}
	}
	return parent{
		kind:      ptr.Deref(ref.Kind, "Gateway"),
		namespace: string(ptr.Deref(ref.Namespace, gwv1.Namespace(namespace))),
		name:      string(ref.Name),
	}
}

// serveRoute gives a route to the nodes, by a listener that it is attached to.
func (c *compiler) serveRoute(r *route, l *listener) {
	t := r.translationFor(c, l)
	name := t.name()
	state, known := c.out.State.Routes[name]
	if !known {
		state = &routing.Route{Name: r.name(), Created: r.object.GetCreationTimestamp().UTC(), Rules: t.rules, Stream: t.stream}
		c.out.State.Routes[name] = state
		for _, backend := range t.backends {
			c.serveBackend(backend)
		}
	}
	for _, hostname := range r.hostnames {
		if _, fits := intersection(l.hostname, string(hostname)); fits && !slices.Contains(state.Hostnames, string(hostname)) {
			state.Hostnames = append(state.Hostnames, string(hostname))
		}
	}
	l.routes = append(l.routes, name)
}
