package compile

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// The manifests and what is expected of them follow the conformance tests of the Gateway API.
func TestGateways(t *testing.T) {
	tests := map[string]struct {
		manifests string
		// wanted are lines for expect.
		wanted []string
	}{
		"one listener": {
			manifests: `
kind: Gateway
metadata: {name: g, generation: 3}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}`,
			wanted: []string{
				"g Accepted=True Accepted", "g Programmed=True Programmed", "g ResolvedRefs=True ResolvedRefs", "g sets=0",
				"g/http Accepted=True Accepted", "g/http Programmed=True Programmed", "g/http ResolvedRefs=True ResolvedRefs",
				"g/http Conflicted=False NoConflicts", "g/http kinds=HTTPRoute,GRPCRoute", "!g InsecureFrontendValidationMode",
			},
		},
		"all protocols": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
  - {name: terminate, port: 443, protocol: TLS, hostname: a.example, tls: {certificateRefs: [{name: certificate}], mode: Terminate}}
  - {name: passthrough, port: 443, protocol: TLS, hostname: b.example, tls: {mode: Passthrough}}
  - {name: tcp, port: 5432, protocol: TCP}
  - {name: udp, port: 5432, protocol: UDP}`,
			wanted: []string{
				"g Accepted=True Accepted", "g Programmed=True Programmed",
				"g/https Programmed=True Programmed", "g/https kinds=HTTPRoute,GRPCRoute",
				"g/terminate Programmed=True Programmed", "g/terminate kinds=TLSRoute,TCPRoute",
				"g/passthrough Programmed=True Programmed", "g/passthrough kinds=TLSRoute",
				"g/tcp Programmed=True Programmed", "g/tcp kinds=TCPRoute", "g/udp Programmed=True Programmed", "g/udp kinds=UDPRoute",
				"g/https OverlappingTLSConfig=True OverlappingHostnames", "g/passthrough OverlappingTLSConfig=True OverlappingHostnames",
				"!g/http OverlappingTLSConfig",
			},
		},
		"only protocols that kedge does not speak": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: invalid, port: 1111, protocol: INVALID}`,
			wanted: []string{
				"g Accepted=False ListenersNotValid", "g Programmed=False Invalid",
				"g/invalid Accepted=False UnsupportedProtocol", "g/invalid Programmed=False Invalid", "g/invalid kinds=",
			},
		},
		"also a protocol that kedge does not speak": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: invalid, port: 80, protocol: INVALID}`,
			wanted: []string{
				"g Accepted=True ListenersNotValid", "g Programmed=True Programmed",
				"g/http Accepted=True Accepted", "g/http Conflicted=False NoConflicts", "g/invalid Accepted=False UnsupportedProtocol",
			},
		},
		"kinds of routes": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: wrong, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: InvalidRoute}]}}
  - {name: both, port: 81, protocol: HTTP, allowedRoutes: {kinds: [{kind: InvalidRoute}, {kind: HTTPRoute}, {kind: HTTPRoute}]}}
  - {name: group, port: 82, protocol: HTTP, allowedRoutes: {kinds: [{kind: HTTPRoute, group: other.example}]}}
  - {name: tls, port: 83, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: TLSRoute}]}}`,
			wanted: []string{
				"g Accepted=True ListenersNotValid", "g Programmed=True Programmed", "g ResolvedRefs=False ListenersNotResolved",
				"g/wrong ResolvedRefs=False InvalidRouteKinds", "g/wrong Programmed=False Invalid", "g/wrong kinds=",
				"g/both ResolvedRefs=False InvalidRouteKinds", "g/both Programmed=True Programmed", "g/both kinds=HTTPRoute",
				"g/group ResolvedRefs=False InvalidRouteKinds", "g/group kinds=",
				"g/tls ResolvedRefs=False InvalidRouteKinds", "g/tls kinds=TLSRoute",
			},
		},
		"conflicts within a Gateway": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP, hostname: a.example}
  - {name: tcp, port: 80, protocol: TCP}
  - {name: third, port: 80, protocol: HTTP, hostname: b.example}
  - {name: https, port: 443, protocol: HTTPS, hostname: a.example, tls: {certificateRefs: [{name: certificate}]}}
  - {name: tls, port: 443, protocol: TLS, hostname: a.example, tls: {mode: Passthrough}}
  - {name: other, port: 443, protocol: TLS, hostname: b.example, tls: {mode: Passthrough}}
  - {name: udp, port: 80, protocol: UDP}`,
			wanted: []string{
				"g Accepted=True ListenersNotValid", "g Programmed=True Programmed",
				"g/http Conflicted=True ProtocolConflict", "g/http Accepted=False ProtocolConflict", "g/http Programmed=False ProtocolConflict",
				"g/tcp Conflicted=True ProtocolConflict", "g/third Conflicted=True ProtocolConflict",
				"g/https Conflicted=True HostnameConflict", "g/tls Conflicted=True HostnameConflict",
				"g/other Conflicted=False NoConflicts", "g/other Programmed=True Programmed", "g/udp Programmed=True Programmed",
			},
		},
		"parameters": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  infrastructure: {parametersRef: {group: invalid.io, kind: InvalidParameters, name: invalid}}
  listeners:
  - {name: http, port: 80, protocol: HTTP}`,
			wanted: []string{"g Accepted=False InvalidParameters", "g Programmed=False Invalid", "g/http Programmed=False Invalid"},
		},
		"a class with parameters": {
			manifests: `
kind: GatewayClass
metadata: {name: wrong}
spec: {controllerName: kedge.dev/gateway, parametersRef: {group: "", kind: ConfigMap, name: c}}
---
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: wrong
  listeners:
  - {name: http, port: 80, protocol: HTTP}`,
			wanted: []string{"g Accepted=False Invalid"},
		},
		"a type of addresses that kedge has not": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: [{type: test/fake-invalid-type, value: fake address teehee!}, {value: 192.0.2.7}]
  listeners:
  - {name: http, port: 8080, protocol: HTTP}`,
			wanted: []string{"g Accepted=False UnsupportedAddress", "g Programmed=False Invalid"},
		},
		"an address without a value": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: [{type: IPAddress}]
  listeners:
  - {name: http, port: 8080, protocol: HTTP}`,
			wanted: []string{"g Accepted=True Accepted", "g Programmed=True Programmed"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { expect(t, newWorld(t, test.manifests).serve(), test.wanted...) })
	}
}

// A Gateway of somebody else has no status of kedge's.
func TestGatewaysOfOthers(t *testing.T) {
	result := newWorld(t, `
kind: GatewayClass
metadata: {name: theirs}
spec: {controllerName: example.org/gateway}
---
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: theirs
  listeners:
  - {name: http, port: 80, protocol: HTTP}
---
kind: Gateway
metadata: {name: h}
spec:
  gatewayClassName: missing
  listeners:
  - {name: http, port: 80, protocol: HTTP}`).serve()
	if len(result.Gateways) != 0 || len(result.Classes) != 1 || len(result.Fronts) != 0 {
		t.Errorf("statuses of %d Gateways and %d classes, and %d fronts", len(result.Gateways), len(result.Classes), len(result.Fronts))
	}
}

func TestClasses(t *testing.T) {
	w := newWorld(t, `
kind: GatewayClass
metadata: {name: wrong, generation: 5}
spec: {controllerName: kedge.dev/gateway, parametersRef: {group: "", kind: ConfigMap, name: c}}
status:
  conditions:
  - {type: Accepted, status: Unknown, reason: Pending, message: Waiting for controller, lastTransitionTime: "1970-01-01T00:00:00Z"}`)
	statuses := w.compile().Classes
	good, wrong := statuses[w.in.Classes[0]], statuses[w.in.Classes[1]]
	if c := good.Conditions[0]; c.Type != "Accepted" || c.Status != metav1.ConditionTrue || c.Reason != "Accepted" {
		t.Errorf("the class has %+v", c)
	}
	if c := wrong.Conditions[0]; len(wrong.Conditions) != 1 || c.Status != metav1.ConditionFalse || c.Reason != "InvalidParameters" || c.ObservedGeneration != 5 {
		t.Errorf("the class with parameters has %+v", wrong.Conditions)
	}
	names := func(yield func(gwv1.FeatureName) bool) {
		for _, feature := range good.SupportedFeatures {
			if !yield(feature.Name) {
				return
			}
		}
	}
	if !slices.IsSorted(slices.Collect(names)) || len(good.SupportedFeatures) > 64 {
		t.Error("the features are not sorted, or too many")
	}
}

func TestAddresses(t *testing.T) {
	manifests := `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: [{value: 203.0.113.1}, {type: IPAddress, value: 192.0.2.7}]
  listeners:
  - {name: http, port: 8080, protocol: HTTP}`
	answer := metav1.Condition{Type: servicelb.Condition, Status: metav1.ConditionTrue, Reason: "Unavailable", Message: "203.0.113.1 belongs to no pool"}
	tests := map[string]struct {
		// change changes the Service, which begins with all that is asked for.
		change    func(w *world, service *corev1.Service)
		wanted    []string
		addresses int
	}{
		"all is there": {
			wanted: []string{"g Programmed=True Programmed", "g/http Programmed=True Programmed"}, addresses: 2,
		},
		"no Service yet": {
			change: func(w *world, service *corev1.Service) { clear(w.services) },
			wanted: []string{"g Accepted=True Accepted", "g Programmed=False Pending", "g/http Programmed=False Pending"},
		},
		"no address yet": {
			change: func(w *world, service *corev1.Service) { service.Status = corev1.ServiceStatus{} },
			wanted: []string{"g Programmed=False AddressNotAssigned", "g/http Programmed=False Pending"},
		},
		"one address is not usable": {
			change: func(w *world, service *corev1.Service) {
				service.Status.LoadBalancer.Ingress = service.Status.LoadBalancer.Ingress[1:]
				service.Status.Conditions = []metav1.Condition{answer}
			},
			wanted: []string{"g Accepted=True Accepted", "g Programmed=False AddressNotUsable", "g/http Programmed=True Programmed"}, addresses: 1,
		},
		"no address is usable": {
			change: func(w *world, service *corev1.Service) {
				service.Status = corev1.ServiceStatus{Conditions: []metav1.Condition{answer}}
			},
			wanted: []string{"g Programmed=False AddressNotUsable"},
		},
		"the port is yet to be added to the Service": {
			change: func(w *world, service *corev1.Service) { service.Spec.Ports[0].Port = 80 },
			wanted: []string{"g Programmed=False Pending", "g/http Programmed=False Pending"}, addresses: 2,
		},
		"no node listens": {
			change: func(w *world, service *corev1.Service) { clear(w.slices) },
			wanted: []string{"g Programmed=False Pending", "g/http Programmed=False Pending"}, addresses: 2,
		},
		"a name in place of an address": {
			change: func(w *world, service *corev1.Service) {
				service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: "lb.example"})
			},
			wanted: []string{"g Programmed=True Programmed"}, addresses: 3,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, manifests)
			fronts := w.compile().Fronts
			if len(fronts) != 1 || fronts[0].Gateway != w.in.Gateways[0] || !slices.Equal(fronts[0].Addresses, []string{"203.0.113.1", "192.0.2.7"}) {
				t.Fatalf("fronts are %+v", fronts)
			}
			service := w.giveService(fronts[0])
			if test.change != nil {
				test.change(w, service)
			}
			result := w.compile()
			expect(t, result, test.wanted...)
			if has := result.Gateways[w.in.Gateways[0]].Addresses; len(has) != test.addresses {
				t.Errorf("the addresses are %+v", has)
			}
			if !result.Services[fronts[0].Name] {
				t.Error("the Service is not looked at when it changes")
			}
		})
	}
}

// The status of a Gateway has at most 16 addresses: the API server refuses more.
func TestManyAddresses(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}`)
	w.serve()
	service := w.services[front.Shared]
	for range 20 {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "192.0.2.9"})
	}
	for _, status := range w.compile().Gateways {
		if len(status.Addresses) != 16 {
			t.Errorf("the status has %d addresses", len(status.Addresses))
		}
	}
}

func TestChooseFront(t *testing.T) {
	tests := map[string]struct {
		spec    string
		offered bool
		own     bool
	}{
		"nothing":                      {spec: `{}`},
		"an address":                   {spec: `{addresses: [{value: 192.0.2.7}]}`, own: true},
		"an address without a value":   {spec: `{addresses: [{type: IPAddress}]}`},
		"a pool":                       {spec: `{infrastructure: {annotations: {kedge.dev/pool: a}}}`, own: true},
		"other annotations":            {spec: `{infrastructure: {annotations: {key1: value1}, labels: {key2: value2}}}`},
		"a pool that offers addresses": {spec: `{}`, offered: true, own: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "kind: Gateway\nmetadata: {name: g}\nspec: "+test.spec)
			g := w.in.Gateways[0]
			g.Spec.GatewayClassName = "kedge"
			g.Spec.Listeners = []gwv1.Listener{{Name: "http", Port: 80, Protocol: gwv1.HTTPProtocolType}}
			w.in.Offered = func(namespace string, labels map[string]string) bool {
				return test.offered && namespace == "infra" && labels[gwv1.GatewayNameLabelKey] == "g"
			}
			fronts := w.compile().Fronts
			if len(fronts) != 1 {
				t.Fatalf("there are %d fronts", len(fronts))
			}
			f := fronts[0]
			if own := f.Name == nameOf("infra", "g-kedge") && f.Gateway == g; own != test.own || !own && (f.Name != front.Shared || f.Gateway != nil || f.Labels != nil) {
				t.Errorf("the front is %+v", f)
			}
		})
	}
}

func TestFrontMetadata(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: [{value: 192.0.2.7}]
  infrastructure: {annotations: {key1: value1}, labels: {key2: value2}}
  listeners:
  - {name: http, port: 8080, protocol: HTTP}`)
	f := w.compile().Fronts[0]
	labels := map[string]string{"key2": "value2", gwv1.GatewayNameLabelKey: "g", gwv1.GatewayClassNameLabelKey: "kedge"}
	if !maps.Equal(f.Labels, labels) || !maps.Equal(f.Annotations, map[string]string{"key1": "value1"}) {
		t.Errorf("the labels are %v and the annotations %v", f.Labels, f.Annotations)
	}
}
