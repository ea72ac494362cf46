package compile

import (
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// compiler is one run of Compile.
type compiler struct {
	in  *Input
	out *Result
	// owners knows which namespace has which host of front.Shared.
	owners *hosts.Owners
	// listeners are all listeners of kedge's Gateways, also those that cannot be used. The
	// order is that of precedence: older Gateways first, and each Gateway's own listeners
	// before those of its listener sets.
	listeners []*listener
	// grants are the ReferenceGrants, by their namespace.
	grants map[string][]*gwv1.ReferenceGrant
	// gatewayOf has the Gateways of kedge's classes, and ordered has them in the order of
	// precedence.
	gatewayOf map[*gwv1.Gateway]*gateway
	ordered   []*gateway
	// checked are the Secrets that were read for their certificates.
	checked map[types.NamespacedName]checked
	// bundles are the ConfigMaps that were read for certificates of authorities.
	bundles map[types.NamespacedName]bundle
	// reaches are the fronts that were looked at.
	reaches map[types.NamespacedName]*reach
	// clientCertificates are the names of the certificates that Gateways show to backends
	// with TLS (spec.tls.backend). gateways() fills it. A Gateway without one is not in it.
	// finish() gives those to the nodes that backends in State name.
	clientCertificates map[*gwv1.Gateway]string
	// backendTLS are the BackendTLSPolicies, and who uses them.
	backendTLS backendPolicies
	// backends are those that a route of this run asked for, by the name in State. Nodes get
	// those that a listener uses.
	backends map[string]*routing.Backend
}

func newCompiler(in *Input) *compiler {
	return &compiler{
		in: in,
		out: &Result{
			State: routing.State{
				Routes: map[string]*routing.Route{}, Backends: map[string]*routing.Backend{}, Certificates: map[string]*routing.Certificate{},
			},
			Classes:      map[*gwv1.GatewayClass]*gwv1.GatewayClassStatus{},
			Gateways:     map[*gwv1.Gateway]*gwv1.GatewayStatus{},
			ListenerSets: map[*gwv1.ListenerSet]*gwv1.ListenerSetStatus{},
			HTTPRoutes:   map[*gwv1.HTTPRoute]*gwv1.HTTPRouteStatus{},
			GRPCRoutes:   map[*gwv1.GRPCRoute]*gwv1.GRPCRouteStatus{},
			TLSRoutes:    map[*gwv1.TLSRoute]*gwv1.TLSRouteStatus{},
			TCPRoutes:    map[*gwv1.TCPRoute]*gwv1.TCPRouteStatus{},
			UDPRoutes:    map[*gwv1.UDPRoute]*gwv1.UDPRouteStatus{},
			Policies:     map[*gwv1.BackendTLSPolicy]*gwv1.PolicyStatus{},
			Secrets:      map[types.NamespacedName]bool{},
			ConfigMaps:   map[types.NamespacedName]bool{},
			Services:     map[types.NamespacedName]bool{},
		},
		grants:    grantsByNamespace(in.Grants),
		gatewayOf: map[*gwv1.Gateway]*gateway{},
		checked:   map[types.NamespacedName]checked{},
		bundles:   map[types.NamespacedName]bundle{},
		reaches:   map[types.NamespacedName]*reach{},

		clientCertificates: map[*gwv1.Gateway]string{},
		backends:           map[string]*routing.Backend{},
	}
}

// listener is a listener of a Gateway or of a listener set, as routes see it.
type listener struct {
	gateway *gwv1.Gateway
	// shared says that the listener is on front.Shared.
	shared bool
	// set is the listener set that has the listener, or nil if the Gateway itself has it.
	set      *gwv1.ListenerSet
	name     gwv1.SectionName
	port     gwv1.PortNumber
	protocol gwv1.ProtocolType
	// tlsMode is empty if the listener has no TLS.
	tlsMode gwv1.TLSModeType
	// hostname is empty for all names.
	hostname string
	// kinds are the kinds of routes that the listener takes.
	kinds []gwv1.RouteGroupKind
	// usable says that the listener serves: it is accepted, and in no conflict.
	usable bool
	// routes are the names of the routes in State that are attached, and attached is how
	// many route objects that are, with those that have nothing to serve.
	routes   []string
	attached int32

	// namespaces says whose routes may attach.
	namespaces admission
	// certificates are names of certificates in State.
	certificates []string
	// awaits says that the only thing missing is a certificate that kedge gets itself. The
	// port is open meanwhile, so that the challenges of an authority can arrive.
	awaits bool
	// clientAuthorities and insecureFallback are those of routing.Listener.
	clientAuthorities string
	insecureFallback  bool
	// accepted, resolved and conflict are what is wrong with the listener. Their reasons are
	// those of its conditions.
	accepted, resolved, conflict fault
	// overlaps names another listener of the port whose host names are also this one's.
	overlaps string
}
