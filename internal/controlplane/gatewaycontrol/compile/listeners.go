package compile

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// kindsOf returns the kinds of routes that a protocol can have, or nil if kedge does not
// speak it.
func kindsOf(protocol gwv1.ProtocolType, mode gwv1.TLSModeType) []gwv1.Kind {
	switch protocol {
	case gwv1.HTTPProtocolType, gwv1.HTTPSProtocolType:
		return []gwv1.Kind{"HTTPRoute", "GRPCRoute"}
	case gwv1.TLSProtocolType:
		if mode == gwv1.TLSModePassthrough {
			return []gwv1.Kind{"TLSRoute"}
		}
		return []gwv1.Kind{"TLSRoute", "TCPRoute"}
	case gwv1.TCPProtocolType:
		return []gwv1.Kind{"TCPRoute"}
	case gwv1.UDPProtocolType:
		return []gwv1.Kind{"UDPRoute"}
	}
	return nil
}

// newListener reads a listener of a Gateway, or of a listener set if set is not nil.
func (c *compiler) newListener(g *gateway, set *gwv1.ListenerSet, spec *gwv1.Listener) *listener {
	l := &listener{
		gateway: g.object, set: set, shared: g.isShared(),
		name: spec.Name, port: spec.Port, protocol: spec.Protocol, kinds: []gwv1.RouteGroupKind{},
	}
	if spec.Protocol == gwv1.HTTPSProtocolType || spec.Protocol == gwv1.TLSProtocolType {
		l.tlsMode = gwv1.TLSModeTerminate
		if spec.TLS != nil && spec.TLS.Mode != nil && *spec.TLS.Mode != "" {
			l.tlsMode = *spec.TLS.Mode
		}
	}
	if spec.Protocol != gwv1.TCPProtocolType && spec.Protocol != gwv1.UDPProtocolType {
		l.hostname = strings.ToLower(string(ptr.Deref(spec.Hostname, "")))
	}
	possible := kindsOf(l.protocol, l.tlsMode)
	if possible == nil {
		l.accepted = faultOf(gwv1.ListenerReasonUnsupportedProtocol,
			"kedge does not speak %s: use HTTP, HTTPS, TLS, TCP or UDP", spec.Protocol)
		return l
	}
	switch l.tlsMode {
	case "", gwv1.TLSModeTerminate:
	case gwv1.TLSModePassthrough:
		if l.protocol == gwv1.HTTPSProtocolType {
			l.accepted = faultOf(gwv1.ListenerReasonUnsupportedValue, "HTTPS cannot be passed through: use the protocol TLS")
		}
	default:
		l.accepted = faultOf(gwv1.ListenerReasonUnsupportedValue, "kedge does not know this tls.mode: use Terminate or Passthrough")
	}
	if l.shared {
		l.accepted = l.accepted.and(c.refusedPort(l))
	}
	if l.hostname != "" && !hosts.Valid(l.hostname) {
		l.accepted = l.accepted.and(faultOf(gwv1.ListenerReasonUnsupportedValue, "%q is not a host name", l.hostname))
	}
	l.allow(spec.AllowedRoutes, possible)
	if l.tlsMode == gwv1.TLSModeTerminate {
		c.readCertificates(l, spec)
	}
	if l.protocol == gwv1.HTTPSProtocolType {
		c.readClientValidation(l)
	}
	return l
}

// allow reads which routes may attach.
func (l *listener) allow(allowed *gwv1.AllowedRoutes, possible []gwv1.Kind) {
	if allowed == nil {
		allowed = &gwv1.AllowedRoutes{}
	}
	namespaces := ptr.Deref(allowed.Namespaces, gwv1.RouteNamespaces{})
	var err error
	if l.namespaces, err = newAdmission(l.parentNamespace(), namespaces.From, gwv1.NamespacesFromSame, namespaces.Selector); err != nil {
		l.accepted = l.accepted.and(faultOf(gwv1.ListenerReasonUnsupportedValue, "read allowedRoutes.namespaces.selector: %v", err))
	}
	add := func(kind gwv1.Kind) {
		l.kinds = append(l.kinds, gwv1.RouteGroupKind{Group: ptr.To(gwv1.Group(gwv1.GroupName)), Kind: kind})
	}
	if len(allowed.Kinds) == 0 {
		for _, kind := range possible {
			add(kind)
		}
		return
	}
	for _, wanted := range allowed.Kinds {
		switch {
		case ptr.Deref(wanted.Group, gwv1.GroupName) != gwv1.GroupName || !slices.Contains(possible, wanted.Kind):
			l.resolved = l.resolved.and(faultOf(gwv1.ListenerReasonInvalidRouteKinds, "a listener for %s cannot have %s: use %s",
				l.protocol, kindOfRoute(wanted), strings.Join(texts(possible), " or ")))
		case !slices.ContainsFunc(l.kinds, func(known gwv1.RouteGroupKind) bool { return known.Kind == wanted.Kind }):
			add(wanted.Kind)
		}
	}
}

func kindOfRoute(of gwv1.RouteGroupKind) string {
	if group := ptr.Deref(of.Group, gwv1.GroupName); group != gwv1.GroupName {
		return fmt.Sprintf("%s of %q", of.Kind, group)
	}
	return string(of.Kind)
}

// readCertificates finds the certificates that a listener shows.
func (c *compiler) readCertificates(l *listener, spec *gwv1.Listener) {
	config := spec.TLS
	if config == nil || len(config.CertificateRefs) == 0 {
		l.resolved = l.resolved.and(faultOf(gwv1.ListenerReasonInvalidCertificateRef, "the listener has no certificate: name a Secret in tls.certificateRefs"))
		return
	}
	for i := range config.CertificateRefs {
		ref := &config.CertificateRefs[i]
		name, wrong := c.certificate(l.referrer(), ref, string(gwv1.ListenerReasonInvalidCertificateRef))
		switch {
		case wrong.is() && l.set == nil && acme.Certifies(l.gateway, spec, ref) && c.in.Secret(l.gateway.Namespace, string(ref.Name)) == nil:
			l.awaits = true
			l.resolved = l.resolved.and(faultOf(gwv1.ListenerReasonPending, "kedge is yet to get the certificate of the Secret %s. "+
				"Events of the Gateway say what keeps it from that", ref.Name))
		case wrong.is():
			l.resolved = l.resolved.and(wrong)
		case !slices.Contains(l.certificates, name):
			l.certificates = append(l.certificates, name)
		}
	}
}

// readClientValidation finds what clients of a listener must show. The Gateway says it, also
// for listeners of listener sets.
func (c *compiler) readClientValidation(l *listener) {
	validation := clientValidation(l.gateway, l.port)
	if validation == nil {
		return
	}
	from := referrer{kind: "Gateway", namespace: l.gateway.Namespace}
	text, wrong := c.authorities(from, validation.CACertificateRefs)
	l.resolved = l.resolved.and(wrong)
	if text == "" {
		// Without authorities, the listener would let everybody in.
		l.accepted = l.accepted.and(faultOf(gwv1.ListenerReasonNoValidCACertificate,
			"no reference in spec.tls.frontend of the Gateway has the certificate of an authority"))
		return
	}
	l.clientAuthorities, l.insecureFallback = text, validation.Mode == gwv1.AllowInsecureFallback
}

// clientValidation returns what a Gateway asks of clients at a port, or nil.
func clientValidation(object *gwv1.Gateway, port gwv1.PortNumber) *gwv1.FrontendTLSValidation {
	if object.Spec.TLS == nil || object.Spec.TLS.Frontend == nil {
		return nil
	}
	frontend := object.Spec.TLS.Frontend
	for i := range frontend.PerPort {
		if frontend.PerPort[i].Port == port {
			return frontend.PerPort[i].TLS.Validation
		}
	}
	return frontend.Default.Validation
}

// parentNamespace returns the namespace of the object that has the listener.
func (l *listener) parentNamespace() string { return l.parent().GetNamespace() }

// parent returns the object that has the listener.
func (l *listener) parent() metav1.Object {
	if l.set != nil {
		return l.set
	}
	return l.gateway
}

// parentKind returns the kind of the object that has the listener.
func (l *listener) parentKind() string {
	if l.set != nil {
		return "ListenerSet"
	}
	return "Gateway"
}

// referrer returns the object that has the listener, as a ReferenceGrant names it.
func (l *listener) referrer() referrer {
	return referrer{kind: l.parentKind(), namespace: l.parentNamespace()}
}

func (l *listener) String() string {
	return l.parentNamespace() + "/" + l.parent().GetName() + "/" + string(l.name)
}

// admits tells whether routes of a namespace may attach, by allowedRoutes.
func (l *listener) admits(namespace *corev1.Namespace) bool { return l.namespaces.admits(namespace) }

// canServe tells whether there is nothing in the listener that keeps it from serving.
func (l *listener) canServe() bool {
	return !l.accepted.is() && !l.conflict.is() && len(l.kinds) > 0 && (l.tlsMode != gwv1.TLSModeTerminate || len(l.certificates) > 0 || l.awaits)
}

// transport returns what the listener uses of its port.
func (l *listener) transport() routing.Transport {
	if l.protocol == gwv1.UDPProtocolType {
		return routing.UDP
	}
	return routing.TCP
}
