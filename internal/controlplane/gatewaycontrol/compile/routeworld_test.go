package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// addForRoutes adds an object that has to do with routes.
func (w *world) addForRoutes(t testing.TB, kind string, document []byte, created time.Time) {
	t.Helper()
	switch kind {
	case "HTTPRoute":
		w.in.HTTPRoutes = append(w.in.HTTPRoutes, dated(w, decode[gwv1.HTTPRoute](t, document), created))
	case "GRPCRoute":
		w.in.GRPCRoutes = append(w.in.GRPCRoutes, dated(w, decode[gwv1.GRPCRoute](t, document), created))
	case "TLSRoute":
		w.in.TLSRoutes = append(w.in.TLSRoutes, dated(w, decode[gwv1.TLSRoute](t, document), created))
	case "TCPRoute":
		w.in.TCPRoutes = append(w.in.TCPRoutes, dated(w, decode[gwv1.TCPRoute](t, document), created))
	case "UDPRoute":
		w.in.UDPRoutes = append(w.in.UDPRoutes, dated(w, decode[gwv1.UDPRoute](t, document), created))
	case "BackendTLSPolicy":
		w.in.Policies = append(w.in.Policies, dated(w, decode[gwv1.BackendTLSPolicy](t, document), created))
	case "Service":
		object := dated(w, decode[corev1.Service](t, document), created)
		w.services[nameOf(object.Namespace, object.Name)] = object
	case "EndpointSlice":
		object := dated(w, decode[discoveryv1.EndpointSlice](t, document), created)
		service := nameOf(object.Namespace, object.Labels[discoveryv1.LabelServiceName])
		w.slices[service] = append(w.slices[service], object)
	case "Secret":
		object := dated(w, decode[corev1.Secret](t, document), created)
		w.secrets[nameOf(object.Namespace, object.Name)] = object
	case "ConfigMap":
		object := dated(w, decode[corev1.ConfigMap](t, document), created)
		w.configMaps[nameOf(object.Namespace, object.Name)] = object
	default:
		t.Fatalf("a manifest has the kind %q", kind)
	}
}

// routesOf writes what became of the routes and of the policies of backends:
//
//	KIND/NAME PARENT[/SECTION][:PORT] TYPE=STATUS REASON   of each parent
//	KIND/NAME parents=NUMBER
//	PARENT/LISTENER attached=NUMBER
//	NAMESPACE/GATEWAY/LISTENER routes=NAME,NAME            of each listener that serves
//	NAME hostnames=NAME,NAME                               of each route in State
func routesOf(result *Result) []string {
	var lines []string
	add := func(format string, arguments ...any) { lines = append(lines, fmt.Sprintf(format, arguments...)) }
	addStatus := func(kind gwv1.Kind, object metav1.Object, status gwv1.RouteStatus) {
		add("%s/%s parents=%d", kind, object.GetName(), len(status.Parents))
		for _, parent := range status.Parents {
			addConditions(add, fmt.Sprintf("%s/%s %s", kind, object.GetName(), refText(&parent.ParentRef)), parent.Conditions)
		}
	}
	for object, status := range result.HTTPRoutes {
		addStatus(httpRoute, object, status.RouteStatus)
	}
	for object, status := range result.GRPCRoutes {
		addStatus(grpcRoute, object, status.RouteStatus)
	}
	for object, status := range result.TLSRoutes {
		addStatus(tlsRoute, object, status.RouteStatus)
	}
	for object, status := range result.TCPRoutes {
		addStatus(tcpRoute, object, status.RouteStatus)
	}
	for object, status := range result.UDPRoutes {
		addStatus(udpRoute, object, status.RouteStatus)
	}
	for object, status := range result.Policies {
		add("BackendTLSPolicy/%s ancestors=%d", object.Name, len(status.Ancestors))
		for _, ancestor := range status.Ancestors {
			addConditions(add, fmt.Sprintf("BackendTLSPolicy/%s %s", object.Name, refText(&ancestor.AncestorRef)), ancestor.Conditions)
		}
	}
	for object, status := range result.Gateways {
		for _, l := range status.Listeners {
			add("%s/%s attached=%d", object.Name, l.Name, l.AttachedRoutes)
		}
	}
	for object, status := range result.ListenerSets {
		for _, l := range status.Listeners {
			add("%s/%s attached=%d", object.Name, l.Name, l.AttachedRoutes)
		}
	}
	for _, f := range result.Fronts {
		for _, port := range f.Ports {
			for _, l := range port.Listeners {
				add("%s routes=%s", l.Name, strings.Join(slices.Sorted(slices.Values(l.Routes)), ","))
			}
		}
	}
	for name, route := range result.State.Routes {
		add("%s hostnames=%s", name, strings.Join(route.Hostnames, ","))
	}
	slices.Sort(lines)
	return lines
}

func addConditions(add func(string, ...any), of string, conditions []metav1.Condition) {
	for _, condition := range conditions {
		add("%s %s=%s %s", of, condition.Type, condition.Status, condition.Reason)
	}
}

func refText(ref *gwv1.ParentReference) string {
	text := string(ref.Name)
	if ref.SectionName != nil {
		text += "/" + string(*ref.SectionName)
	}
	if ref.Port != nil {
		text += fmt.Sprintf(":%d", *ref.Port)
	}
	return text
}

// expectRoutes checks that lines of routesOf are there. A line that begins with "!" must not be
// the beginning of one.
func expectRoutes(t testing.TB, result *Result, wanted ...string) {
	t.Helper()
	lines := routesOf(result)
	for _, line := range wanted {
		unwanted, not := strings.CutPrefix(line, "!")
		if not {
			if slices.ContainsFunc(lines, func(has string) bool { return strings.HasPrefix(has, unwanted) }) {
				t.Errorf("there is %q", unwanted)
			}
		} else if !slices.Contains(lines, line) {
			t.Errorf("missing %q", line)
		}
	}
	if t.Failed() {
		t.Logf("it has:\n%s", strings.Join(lines, "\n"))
	}
}

// messageOf returns the message of a condition of an HTTPRoute, about its first parent.
func messageOf[T ~string](t testing.TB, result *Result, name string, kind T) string {
	t.Helper()
	for object, status := range result.HTTPRoutes {
		for _, parent := range status.Parents {
			for _, condition := range parent.Conditions {
				if object.Name == name && condition.Type == string(kind) {
					return condition.Message
				}
			}
		}
	}
	t.Fatalf("HTTPRoute %s has no condition %s", name, kind)
	return ""
}

// backendNames returns the names of the backends in State.
func backendNames(result *Result) []string {
	return slices.Sorted(maps.Keys(result.State.Backends))
}

// services are Services with the names a, b and grpc in namespace infra, and c in namespace
// other. Each has an endpoint.
const services = `
kind: Service
metadata: {name: a}
spec: {ports: [{name: http, port: 8080}, {name: other, port: 9090}]}
---
kind: EndpointSlice
metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
endpoints: [{addresses: [10.42.0.1]}]
ports: [{name: http, port: 3000}, {name: other, port: 3001}]
---
kind: Service
metadata: {name: b}
spec: {ports: [{port: 8080}, {name: udp, protocol: UDP, port: 8080}]}
---
kind: EndpointSlice
metadata: {name: b-1, labels: {kubernetes.io/service-name: b}}
addressType: IPv4
endpoints: [{addresses: [10.42.0.2]}]
ports: [{port: 3000}, {name: udp, protocol: UDP, port: 5353}]
---
kind: Service
metadata: {name: c, namespace: other}
spec: {ports: [{port: 8080}]}
---
kind: EndpointSlice
metadata: {name: c-1, namespace: other, labels: {kubernetes.io/service-name: c}}
addressType: IPv4
endpoints: [{addresses: [10.42.0.3]}]
ports: [{port: 3000}]
---
`

// oneGateway is a Gateway with the name g in namespace infra, with one listener.
const oneGateway = `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
---
`
