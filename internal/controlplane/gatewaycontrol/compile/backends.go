package compile

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
)

// speech is what a backend speaks.
type speech struct {
	protocol routing.BackendProtocol
	// secured says that the backend expects TLS.
	secured bool
	// web says that the backend is for WebSocket, which gRPC is not.
	web bool
}

// appProtocols are the values of appProtocol of a Service that mean something to a gateway:
// those of Kubernetes (KEP-3726), of IANA, and those that others made usual. All others, in
// lower case, are taken for HTTP/1.1.
var appProtocols = map[string]speech{
	"kubernetes.io/h2c": {protocol: routing.PlainH2},
	"kubernetes.io/ws":  {web: true},
	"kubernetes.io/wss": {web: true, secured: true},
	"h2c":               {protocol: routing.PlainH2},
	"http2":             {protocol: routing.PlainH2},
	"grpc":              {protocol: routing.PlainH2},
	"grpcs":             {protocol: routing.PlainH2, secured: true},
	"https":             {secured: true},
	"tls":               {secured: true},
}

// targets returns what requests are divided between. If nothing may get a request, all of them
// are answered with a fault.
func (t *translation) targets(of []routing.Target) []routing.Target {
	for i := range of {
		if of[i].Weight > 0 {
			return of
		}
	}
	return []routing.Target{{Fault: t.failure(), Weight: 1}}
}

// target returns what a reference to a backend means. A reference that cannot be used gets its
// part of the requests, and these are answered with a fault.
func (t *translation) target(ref *gwv1.BackendRef) routing.Target {
	target := routing.Target{Weight: max(0, int(ptr.Deref(ref.Weight, 1)))}
	if target.Backend = t.backend(&ref.BackendObjectReference); target.Backend == "" {
		target.Fault = t.failure()
	}
	return target
}

// failure is the status for requests that have no backend. For gRPC it must mean UNAVAILABLE.
func (t *translation) failure() int {
	if t.route.kind == grpcRoute {
		return 503
	}
	return 500
}

// backend returns the name of the backend that a reference means. It is empty if there is none.
func (t *translation) backend(ref *gwv1.BackendObjectReference) string {
	service, port, wrong := t.service(ref)
	if wrong.is() {
		t.unresolved.add(wrong)
		return ""
	}
	policy := t.policy(service, port)
	speaks := t.speech(port)
	if speaks.secured && policy == nil {
		t.unresolved.add(faultOf(gwv1.RouteReasonUnsupportedProtocol,
			"port %d of Service %s/%s expects TLS (appProtocol %s): a BackendTLSPolicy must say which certificate it has",
			port.Port, service.Namespace, service.Name, *port.AppProtocol))
		return ""
	}
	if speaks.web && t.route.kind == grpcRoute {
		t.unresolved.add(faultOf(gwv1.RouteReasonUnsupportedProtocol,
			"port %d of Service %s/%s is for WebSocket (appProtocol %s), not for gRPC",
			port.Port, service.Namespace, service.Name, *port.AppProtocol))
		return ""
	}
	if policy != nil && policy.tls == nil {
		return "" // the policy says in its status why it cannot be used
	}
	name := t.addBackend(service, port, speaks.protocol, policy)
	t.backends = append(t.backends, name)
	return name
}

// service returns the port of a Service that a reference means.
func (t *translation) service(ref *gwv1.BackendObjectReference) (*corev1.Service, *corev1.ServicePort, fault) {
	group, kind := string(ptr.Deref(ref.Group, "")), string(ptr.Deref(ref.Kind, "Service"))
	if group != "" || kind != "Service" {
		return nil, nil, faultOf(gwv1.RouteReasonInvalidKind, "%s cannot be a backend: refer to a Service", objectKind(group, kind))
	}
	from := referrer{kind: string(t.route.kind), namespace: t.route.object.GetNamespace()}
	name := types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gwv1.Namespace(from.namespace))), Name: string(ref.Name)}
	// The grant comes first: without one, nobody learns whether the Service exists.
	if !t.c.granted(gwv1.GroupName, from.kind, from.namespace, group, kind, name.Namespace, name.Name) {
		return nil, nil, notPermitted(from, kind, name)
	}
	t.c.out.Services[name] = true
	service := t.c.in.Service(name.Namespace, name.Name)
	if service == nil {
		return nil, nil, faultOf(gwv1.RouteReasonBackendNotFound, "there is no Service %s", name)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		// Whoever may write a Service could make every gateway connect to any name that the
		// nodes can resolve, and pass on what answers there.
		return nil, nil, faultOf(gwv1.RouteReasonInvalidKind,
			"Service %s is of type ExternalName, which cannot be a backend: use a Service without a selector, an EndpointSlice, and the setting %s", name, config.BackendRanges)
	}
	if ref.Port == nil {
		return nil, nil, faultOf(gwv1.RouteReasonBackendNotFound, "the reference to Service %s has no port", name)
	}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.Port == *ref.Port && (port.Protocol == t.transport() || port.Protocol == "" && t.transport() == corev1.ProtocolTCP) {
			return service, port, fault{}
		}
	}
	return nil, nil, faultOf(gwv1.RouteReasonBackendNotFound, "Service %s has no port %d of %s", name, *ref.Port, t.transport())
}

// transport is the protocol of the ports that the route can use.
func (t *translation) transport() corev1.Protocol {
	if t.route.kind == udpRoute {
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

// speech says what a port of a Service speaks. To routes of connections it makes no difference.
func (t *translation) speech(port *corev1.ServicePort) speech {
	said := appProtocols[strings.ToLower(ptr.Deref(port.AppProtocol, ""))]
	switch t.route.kind {
	case httpRoute:
		return said
	case grpcRoute:
		said.protocol = routing.PlainH2
		return said
	}
	return speech{}
}

// policy returns the BackendTLSPolicy for a port of a Service, or nil. Routes of TCP and UDP
// have none, and neither have connections whose TLS goes on to the backend.
func (t *translation) policy(service *corev1.Service, port *corev1.ServicePort) *backendPolicy {
	if t.route.kind == tcpRoute || t.route.kind == udpRoute || t.variant.passthrough {
		return nil
	}
	target := policyTarget{types.NamespacedName{Namespace: service.Namespace, Name: service.Name}, port.Name}
	if !t.c.backendTLS.mayApply(target.service) {
		return nil
	}
	t.uses = append(t.uses, target)
	return t.c.backendTLS.policyFor(target)
}

// addBackend makes a backend of a port of a Service, and returns its name. A port that is used
// in several ways is several backends.
func (t *translation) addBackend(service *corev1.Service, port *corev1.ServicePort, protocol routing.BackendProtocol, policy *backendPolicy) string {
	plain := endpoints.NameOf(service.Namespace, service.Name, port.Port)
	name := plain
	if t.route.kind == udpRoute {
		name += "+udp"
	}
	if protocol == routing.PlainH2 {
		name += "+h2"
	}
	if policy != nil {
		name += "+tls"
		if t.variant.certificate != "" {
			name += "+" + t.variant.certificate
		}
	}
	found := t.c.in.Endpoints(service, port)
	if found.Refused != "" {
		t.unresolved.add(fault{endpoints.ReasonRefused, found.Refused})
	}
	if t.c.backends[name] != nil {
		return name
	}
	backend := &routing.Backend{Name: plain, Protocol: protocol, Endpoints: found.Endpoints}
	if policy != nil {
		secured := *policy.tls
		secured.ClientCertificate = t.variant.certificate
		backend.TLS = &secured
	}
	t.c.backends[name] = backend
	return name
}

// serveBackend gives a backend to the nodes.
func (c *compiler) serveBackend(name string) {
	backend := c.backends[name]
	c.out.State.Backends[name] = backend
	if backend.TLS != nil && backend.TLS.ClientCertificate != "" {
		c.serve(backend.TLS.ClientCertificate)
	}
}
