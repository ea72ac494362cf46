// Package ingress works out what Ingresses (networking.k8s.io/v1) mean: what the nodes serve,
// and what is wrong with each Ingress. It is a function of its input, without state and
// without a clock. Package gatewaycontrol calls it whenever an object changes.
//
// The order of the files is the order of the work: which Ingresses kedge serves (classes.go),
// what their annotations say (annotations.go, auth.go), their paths (rules.go) with the
// Services behind them (backends.go), and the certificates of their hosts (tls.go).
//
// # What the API leaves open
//
//   - A path of the type ImplementationSpecific is a prefix of whole elements, as Prefix is.
//   - If several Ingresses have the same host and path, the oldest one gets the requests. The
//     others have a fault.
//   - An Ingress without rules gets all requests that nothing else matches. An Ingress with
//     rules and a default backend gets the requests to its own hosts that nothing else matches.
//   - Annotations of the prefix ingress.kedge.dev/ that are unknown or have a bad value are a
//     fault. Until it is corrected, all requests of the Ingress are answered with 503. A
//     mistyped annotation must not open what it was meant to protect.
//   - A host is served by HTTPS if an Ingress has it in spec.tls with a certificate that can be
//     used. There is no default certificate that kedge has made itself, as Traefik has: it would
//     teach users to ignore warnings. Without a certificate, clients cannot connect by HTTPS,
//     and a fault says why.
//   - An entry of spec.tls without hosts is for all hosts of the rules of its Ingress.
//   - Backends that are resources, and Services of type ExternalName, are refused. A gateway
//     connects from the node, so a name of the user's choice could be any service of the node
//     or of the network around it. The package endpoints says which addresses of EndpointSlices are left out.
package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// Input has the objects of the cluster. Compile changes nothing of it.
type Input struct {
	Ingresses []*netv1.Ingress
	Classes   []*netv1.IngressClass
	// ServedClasses are further names of classes that kedge serves if no IngressClass of the
	// name has another controller (the setting gateway-ingress-classes).
	ServedClasses []string

	// The functions return an object, or nil if there is none.
	Service func(namespace, name string) *corev1.Service
	Secret  func(namespace, name string) *corev1.Secret
	// Certificate reads the certificate of a Secret. It is certificates.Read, or that of a Cache.
	Certificate func(*corev1.Secret) (*certificates.Certificate, error)
	// Endpoints returns the endpoints of a port of a Service.
	Endpoints func(*corev1.Service, *corev1.ServicePort) endpoints.Found
}

// Result is what Compile returns.
type Result struct {
	// State has the routes, backends and certificates. Its sockets are empty: they follow from
	// the fronts and from the ports that their Services have.
	State routing.State
	// Fronts is empty, or has front.Shared.
	Fronts []front.Front
	// Served are the Ingresses of kedge's classes. The value says that kedge serves a host of
	// the Ingress. Then its status has the addresses of the front.
	Served map[*netv1.Ingress]bool
	// Left are the other Ingresses that have addresses in their status. The value says that no
	// controller serves their class, so that nobody else has written the addresses, or will
	// correct them.
	Left map[*netv1.Ingress]bool
	// Faults are in the order of the Ingresses' age. Their reasons are those of this package, or
	// endpoints.ReasonRefused.
	Faults []faults.Fault

	// Secrets and Services are what the Ingresses refer to, whether it exists or not: the
	// caller has to look at it again when it changes.
	Secrets, Services map[types.NamespacedName]bool
}

// Refuse adds faults about Ingresses that nodes do not serve. reasons says why, by KIND/NAMESPACE/NAME.
func (r *Result) Refuse(reasons map[string]string) {
	for object := range r.Served {
		if why, refused := reasons["Ingress/"+nameOf(object)]; refused {
			r.Faults = append(r.Faults, faults.Fault{Object: object, Reason: ReasonNotServed, Message: "Nodes do not serve the Ingress: " + why})
		}
	}
}

// These are the reasons of faults.
const (
	// ReasonNoController means that nobody serves the class of the Ingress.
	ReasonNoController = "NoController"
	// ReasonBadAnnotation means that an annotation of kedge has a bad value.
	ReasonBadAnnotation = "BadAnnotation"
	// ReasonBadPath means that a path cannot be used.
	ReasonBadPath = "BadPath"
	// ReasonConflict means that an older Ingress has the same host and path, or that the host
	// belongs to another namespace.
	ReasonConflict = "Conflict"
	// ReasonBadBackend means that a Service or its port does not exist or cannot be used.
	ReasonBadBackend = "BadBackend"
	// ReasonBadCertificate means that a Secret has no certificate that can be used.
	ReasonBadCertificate = "BadCertificate"
	// ReasonNotServed means that nodes would not accept what the Ingress says (Result.Refuse).
	ReasonNotServed = "NotServed"
)

// compiler is one run of Compile.
type compiler struct {
	in  *Input
	out *Result
	// entries are the Ingresses that kedge serves, oldest first.
	entries []*entry
	// claims has the owner of each path of each host.
	claims map[claim]*entry
	// owners knows which namespace has which host.
	owners *hosts.Owners
	// byHost has the names of the routes for each host: for HTTPS, and for HTTP.
	byHost, plainByHost map[tenantHost][]string
	// hosts are those of HTTPS, in the order of their age, and secured has them by their names.
	hosts   []*secureHost
	secured map[tenantHost]*secureHost
}

// tenantHost is a host with the namespace of the Ingresses that serve it. The namespace is empty
// if hosts belong to nobody.
type tenantHost struct{ namespace, host string }

// tenant returns the namespace whose hosts an Ingress serves.
func (c *compiler) tenant(e *entry) string {
	if c.owners == nil {
		return ""
	}
	return e.Namespace
}

// entry is an Ingress that kedge serves.
type entry struct {
	*netv1.Ingress
	settings settings
	// hosts are those of the rules that are not another namespace's, in their order. Without
	// rules it is the empty host, which stands for all.
	hosts []string
	// rules are those of each host.
	rules map[string][]routing.Rule
	// faults has those that were told, so that each is told once.
	faults map[string]bool
}

// Run is one run of the compiler. Begin makes it, and Finish ends it.
type Run struct{ c *compiler }

// Begin finds the Ingresses that kedge serves.
func Begin(in *Input) *Run {
	c := &compiler{
		in: in,
		out: &Result{
			State: routing.State{
				Routes:       map[string]*routing.Route{},
				Backends:     map[string]*routing.Backend{},
				Certificates: map[string]*routing.Certificate{},
			},
			Served:   map[*netv1.Ingress]bool{},
			Left:     map[*netv1.Ingress]bool{},
			Secrets:  map[types.NamespacedName]bool{},
			Services: map[types.NamespacedName]bool{},
		},
		claims: map[claim]*entry{},
		byHost: map[tenantHost][]string{}, plainByHost: map[tenantHost][]string{},
		secured: map[tenantHost]*secureHost{},
	}
	c.classes()
	return &Run{c}
}

// Finish works out what the Ingresses mean. owners says which namespace has which host.
func (r *Run) Finish(owners *hosts.Owners) *Result {
	c := r.c
	c.owners = owners
	for _, e := range c.entries {
		e.settings = c.annotations(e)
	}
	for _, e := range c.entries {
		c.paths(e)
	}
	// Defaults come after all paths: a path that somebody has asked for goes first.
	for _, e := range c.entries {
		c.defaults(e)
	}
	for _, e := range c.entries {
		c.routes(e)
	}
	for _, e := range c.entries {
		c.certificates(e)
	}
	c.redirects()
	c.front()
	return c.out
}

// fault tells what is wrong with an Ingress, once.
func (c *compiler) fault(e *entry, reason, format string, values ...any) {
	message := fmt.Sprintf(format, values...)
	if !e.faults[message] {
		e.faults[message] = true
		c.out.Faults = append(c.out.Faults, faults.Fault{Object: e.Ingress, Reason: reason, Message: message})
	}
}

// byAge compares Ingresses: the older one is first, and then the one whose name is.
func byAge(a, b *netv1.Ingress) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(nameOf(a), nameOf(b)))
}

// nameOf returns NAMESPACE/NAME of an Ingress.
func nameOf(ingress *netv1.Ingress) string { return ingress.Namespace + "/" + ingress.Name }

// front makes the front, with a socket for HTTP, and those for HTTPS if a host has it.
func (c *compiler) front() {
	if len(c.entries) == 0 {
		return
	}
	name := front.Shared.String()
	listener := func(namespace string, of routing.Listener) front.Listener {
		return front.Listener{Listener: of, Namespace: namespace}
	}
	plain := front.Port{Number: front.PlainPort, Transport: routing.TCP}
	routes := c.plainRoutes()
	for _, namespace := range slices.Sorted(maps.Keys(routes)) {
		plain.Listeners = append(plain.Listeners, listener(namespace, routing.Listener{
			Name: name + "/http", Protocol: routing.HTTP, Routes: routes[namespace],
		}))
	}
	shared := front.Front{Name: front.Shared, Ports: []front.Port{plain}}
	var secure []front.Listener
	below := c.routesBelow()
	for _, host := range c.hosts {
		if len(host.certificates) > 0 {
			secure = append(secure, listener(host.namespace, routing.Listener{
				Name: name + "/https", Protocol: routing.HTTPS, Hostname: host.host,
				Certificates: host.certificates, Routes: c.routesOf(host.tenantHost, below),
			}))
		}
	}
	if len(secure) > 0 {
		shared.Ports = append(shared.Ports,
			front.Port{Number: front.SecurePort, Transport: routing.TCP, HTTP3: true, Listeners: secure},
			front.Port{Number: front.SecurePort, Transport: routing.UDP, HTTP3: true, Listeners: slices.Clone(secure)})
	}
	c.out.Fronts = []front.Front{shared}
}
