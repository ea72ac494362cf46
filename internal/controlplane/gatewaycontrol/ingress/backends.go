package ingress

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
)

// unavailable returns the target of requests that nobody can answer.
func unavailable() routing.Target { return routing.Target{Fault: 503, Weight: 1} }

// target returns where requests for a backend of an Ingress go.
func (c *compiler) target(e *entry, backend *netv1.IngressBackend) routing.Target {
	name, err := c.backend(e, backend)
	if err != nil {
		c.fault(e, ReasonBadBackend, "Requests are answered with 503: %s", err)
		return unavailable()
	}
	return routing.Target{Backend: name, Weight: 1}
}

// backend returns the name of a backend in the State. It fails if the Service cannot be used.
func (c *compiler) backend(e *entry, backend *netv1.IngressBackend) (name string, err error) {
	if backend.Service == nil {
		return "", fmt.Errorf("a backend is no Service, and kedge knows no other kind: set backend.service")
	}
	wanted := backend.Service
	c.out.Services[types.NamespacedName{Namespace: e.Namespace, Name: wanted.Name}] = true
	service := c.in.Service(e.Namespace, wanted.Name)
	if service == nil {
		return "", fmt.Errorf("the Service %q does not exist", wanted.Name)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return "", fmt.Errorf("the Service %q is of type ExternalName, which kedge refuses: use a Service without a selector, an EndpointSlice, and the setting %s", wanted.Name, config.BackendRanges)
	}
	port := portOf(service, wanted.Port)
	if port == nil {
		return "", fmt.Errorf("the Service %q has no TCP port %s", wanted.Name, portText(wanted.Port))
	}
	speaks := e.settings.protocol
	if speaks == unset {
		speaks = protocolOf(port)
	}
	behind := c.in.Endpoints(service, port)
	if behind.Refused != "" {
		c.fault(e, endpoints.ReasonRefused, "Some endpoints of the Service %q get no requests: %s", wanted.Name, behind.Refused)
	}
	found := &routing.Backend{Name: endpoints.NameOf(e.Namespace, service.Name, port.Port), Endpoints: behind.Endpoints}
	switch speaks {
	case plainH2:
		found.Protocol = routing.PlainH2
	case overTLS:
		found.TLS = &routing.BackendTLS{ServerName: service.Name + "." + e.Namespace + ".svc", Insecure: true}
	}
	if err := found.Check(); err != nil {
		return "", fmt.Errorf("nodes cannot use the Service %q: %w", wanted.Name, err)
	}
	// A Gateway may use the same port of the Service in another way, so the backends of
	// Ingresses have names of their own.
	name = "Ingress/" + found.Name + "/" + string(speaks)
	c.out.State.Backends[name] = found
	return name, nil
}

// portOf returns the port of a Service that an Ingress names, or nil.
func portOf(service *corev1.Service, wanted netv1.ServiceBackendPort) *corev1.ServicePort {
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
			continue
		}
		if wanted.Name != "" && wanted.Name == port.Name || wanted.Name == "" && wanted.Number == port.Port {
			return port
		}
	}
	return nil
}

func portText(port netv1.ServiceBackendPort) string {
	if port.Name != "" {
		return fmt.Sprintf("with the name %q", port.Name)
	}
	return fmt.Sprint(port.Number)
}

// protocolOf returns what a port speaks, if the Ingress does not say it. Port 443 and names
// that begin with https mean TLS, as with Traefik in k3s.
func protocolOf(port *corev1.ServicePort) protocol {
	if port.AppProtocol != nil {
		switch strings.ToLower(*port.AppProtocol) {
		case "kubernetes.io/h2c":
			return plainH2
		case "https", "kubernetes.io/wss":
			return overTLS
		case "http", "kubernetes.io/ws":
			return plainHTTP
		}
	}
	if port.Port == 443 || strings.HasPrefix(port.Name, "https") {
		return overTLS
	}
	return plainHTTP
}
