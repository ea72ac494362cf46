// Package compile works out what the objects of the Gateway API mean: what the nodes serve,
// and what the status of each object says. It is a function of its input, without state and
// without a clock. Package gatewaycontrol calls it whenever an object changes.
//
// The order of the files is the order of the work: the classes and Gateways with their
// listeners (classes.go, gateways.go, listeners.go, listenersets.go, certificates.go), what
// listeners compete for (conflicts.go) and the hosts that they want (claims.go), then the policies of backends (policies.go), then the
// routes that attach to listeners (routes.go, attaching.go) with their rules (translation.go,
// http.go, filters.go, grpc.go, streams.go) and backends (backends.go), and at last the fronts (fronts.go, reach.go) and the statuses (statuses.go).
// References into other namespaces need a ReferenceGrant (grants.go).
package compile

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// Controller is the name of kedge's controller in GatewayClasses and in statuses.
const Controller gwv1.GatewayController = "kedge.dev/gateway"

// Input has the objects of the cluster. Compile changes nothing of it.
type Input struct {
	Classes      []*gwv1.GatewayClass
	Gateways     []*gwv1.Gateway
	ListenerSets []*gwv1.ListenerSet
	HTTPRoutes   []*gwv1.HTTPRoute
	GRPCRoutes   []*gwv1.GRPCRoute
	TLSRoutes    []*gwv1.TLSRoute
	TCPRoutes    []*gwv1.TCPRoute
	UDPRoutes    []*gwv1.UDPRoute
	Grants       []*gwv1.ReferenceGrant
	Policies     []*gwv1.BackendTLSPolicy

	// The functions return an object, or nil if there is none.
	Namespace func(name string) *corev1.Namespace
	Service   func(namespace, name string) *corev1.Service
	Secret    func(namespace, name string) *corev1.Secret
	ConfigMap func(namespace, name string) *corev1.ConfigMap
	// Certificate reads the certificate of a Secret. It is certificates.Read, or that of a Cache.
	Certificate func(*corev1.Secret) (*certificates.Certificate, error)
	// Slices returns the EndpointSlices of a Service.
	Slices func(namespace, service string) []*discoveryv1.EndpointSlice
	// Endpoints returns the endpoints of a port of a Service.
	Endpoints func(*corev1.Service, *corev1.ServicePort) endpoints.Found
	// Offered tells whether a pool gives a Service with these labels an address without
	// being asked.
	Offered func(namespace string, labels map[string]string) bool
	// Ports are further ports of front.Shared than 80 and 443 (the setting gateway-ports).
	Ports []uint16
}

// Result is what Compile returns.
type Result struct {
	// State has the routes, backends and certificates. Its sockets are empty: they follow from
	// the fronts and from the ports that their Services have.
	State routing.State
	// Fronts are the Services that there must be. Gateways without addresses of their own are
	// all in one front with the name front.Shared.
	Fronts []front.Front

	// The statuses are whole, by the object: of each object that is kedge's business, also if
	// nothing has changed. Entries of other controllers in the status of a route or policy are
	// kept. The times of conditions whose status stays are kept, and those of others are zero.
	Classes      map[*gwv1.GatewayClass]*gwv1.GatewayClassStatus
	Gateways     map[*gwv1.Gateway]*gwv1.GatewayStatus
	ListenerSets map[*gwv1.ListenerSet]*gwv1.ListenerSetStatus
	HTTPRoutes   map[*gwv1.HTTPRoute]*gwv1.HTTPRouteStatus
	GRPCRoutes   map[*gwv1.GRPCRoute]*gwv1.GRPCRouteStatus
	TLSRoutes    map[*gwv1.TLSRoute]*gwv1.TLSRouteStatus
	TCPRoutes    map[*gwv1.TCPRoute]*gwv1.TCPRouteStatus
	UDPRoutes    map[*gwv1.UDPRoute]*gwv1.UDPRouteStatus
	Policies     map[*gwv1.BackendTLSPolicy]*gwv1.PolicyStatus

	// Secrets, ConfigMaps and Services are what the objects refer to, whether it exists or
	// not: the caller has to look at it again when it changes.
	Secrets, ConfigMaps, Services map[types.NamespacedName]bool
}

// Run is one run of the compiler. Begin makes it, and Finish ends it.
type Run struct{ c *compiler }

// Begin reads the Gateways with their listeners and listener sets.
func Begin(in *Input) *Run {
	c := newCompiler(in)
	c.classes()
	c.gateways()
	return &Run{c}
}

// Finish works out what the objects mean. owners says which namespace has which host of
// front.Shared.
func (r *Run) Finish(owners *hosts.Owners) *Result {
	c := r.c
	c.owners = owners
	c.decide()
	c.policies() // what backends must prove
	c.routes()   // attach to listeners
	c.finish()   // counts, fronts, statuses
	return c.out
}
