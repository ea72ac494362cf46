package compile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// everything has an object of each kind, with all that Compile reads of them.
const everything = services + securedRoute + `
kind: ListenerSet
metadata: {name: s}
spec: {parentRef: {name: big}, listeners: [{name: sets, port: 81, protocol: HTTP, hostname: "*.ls.example"}]}
---
kind: Gateway
metadata: {name: big}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: All}}
  infrastructure: {labels: {a: b}, annotations: {c: d}}
  addresses: [{type: IPAddress, value: 192.0.2.7}]
  tls:
    backend: {clientCertificateRef: {name: certificate}}
    frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: authority}]}}}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}, {name: certificate, namespace: other}]}, allowedRoutes: {namespaces: {from: All}, kinds: [{kind: HTTPRoute}]}}
  - {name: tls, port: 8443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tcp, port: 9000, protocol: TCP}
  - {name: udp, port: 9000, protocol: UDP}
---
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}], to: [{group: "", kind: Service}]}
---
kind: HTTPRoute
metadata: {name: full}
spec:
  parentRefs: [{name: big}, {kind: ListenerSet, name: s}, {name: missing}]
  hostnames: [a.ls.example, b.example]
  rules:
  - name: rule
    matches: [{path: {value: /a}, headers: [{name: a, value: b}], queryParams: [{name: a, value: b}], method: GET}]
    timeouts: {request: 1s}
    retry: {codes: [500], attempts: 2, backoff: 1ms}
    sessionPersistence: {sessionName: a}
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}], add: [{name: c, value: d}], remove: [e]}}
    - {type: URLRewrite, urlRewrite: {hostname: a, path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, percent: 5}}
    - {type: CORS, cors: {allowOrigins: ["*"]}}
    backendRefs: [{name: c, namespace: other, port: 8080}, {name: secured, port: 443}, {name: missing, port: 1}]
  - {filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]}
  - {matches: [{path: {type: Fuzzy, value: /a}}]}
---
kind: GRPCRoute
metadata: {name: grpc}
spec: {parentRefs: [{name: g}], hostnames: [grpc.example], rules: [{matches: [{method: {service: a, method: b}}], backendRefs: [{name: a, port: 8080}]}]}
---
kind: TLSRoute
metadata: {name: tls}
spec: {parentRefs: [{name: big}], hostnames: [tls.example], rules: [{backendRefs: [{name: secured, port: 8443}]}]}
---
kind: TCPRoute
metadata: {name: tcp}
spec: {parentRefs: [{name: big}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: UDPRoute
metadata: {name: udp}
spec: {parentRefs: [{name: big}], rules: [{backendRefs: [{name: b, port: 8080}]}]}
---
kind: BackendTLSPolicy
metadata: {name: policy}
spec: {targetRefs: [{group: "", kind: Service, name: secured}], validation: {hostname: a, caCertificateRefs: [{group: "", kind: ConfigMap, name: authority}], subjectAltNames: [{type: Hostname, hostname: a}]}}
`

// settle writes the statuses of a result into the objects, as the caller of Compile does, with
// a time for each condition.
func settle(result *Result) {
	now := metav1.NewTime(time.Unix(1_700_100_000, 0))
	for object, status := range result.Gateways {
		object.Status = *status.DeepCopy()
		stamp(object.Status.Conditions, now)
		for i := range object.Status.Listeners {
			stamp(object.Status.Listeners[i].Conditions, now)
		}
	}
	for object, status := range result.HTTPRoutes {
		object.Status = *status.DeepCopy()
		for i := range object.Status.Parents {
			stamp(object.Status.Parents[i].Conditions, now)
		}
	}
	for object, status := range result.Policies {
		object.Status = *status.DeepCopy()
		for i := range object.Status.Ancestors {
			stamp(object.Status.Ancestors[i].Conditions, now)
		}
	}
}

func stamp(conditions []metav1.Condition, now metav1.Time) {
	for i := range conditions {
		conditions[i].LastTransitionTime = now
	}
}

// objects returns all objects of the cluster.
func (w *world) objects() []runtime.Object {
	var all []runtime.Object
	all = appendObjects(all, w.in.Classes)
	all = appendObjects(all, w.in.Gateways)
	all = appendObjects(all, w.in.ListenerSets)
	all = appendObjects(all, w.in.HTTPRoutes)
	all = appendObjects(all, w.in.GRPCRoutes)
	all = appendObjects(all, w.in.TLSRoutes)
	all = appendObjects(all, w.in.TCPRoutes)
	all = appendObjects(all, w.in.UDPRoutes)
	all = appendObjects(all, w.in.Grants)
	all = appendObjects(all, w.in.Policies)
	for _, object := range w.namespaces {
		all = append(all, object)
	}
	for _, object := range w.services {
		all = append(all, object)
	}
	for _, object := range w.secrets {
		all = append(all, object)
	}
	for _, object := range w.configMaps {
		all = append(all, object)
	}
	for _, found := range w.slices {
		all = appendObjects(all, found)
	}
	return all
}

func appendObjects[T runtime.Object](to []runtime.Object, objects []T) []runtime.Object {
	for _, object := range objects {
		to = append(to, object)
	}
	return to
}

// The objects are those of the cache, which all parts of the process share.
func TestCompileChangesNothing(t *testing.T) {
	w := newWorld(t, everything)
	settle(w.serve())
	objects := w.objects()
	var copies []runtime.Object
	for _, object := range objects {
		copies = append(copies, object.DeepCopyObject())
	}
	result := w.compile()
	for i := range objects {
		if !equality.Semantic.DeepEqual(objects[i], copies[i]) {
			t.Errorf("Compile has changed %+v, which was %+v", objects[i], copies[i])
		}
	}

	// Nobody changes the objects by changing what Compile returned, either.
	for _, status := range result.HTTPRoutes {
		for i := range status.Parents {
			if kind := status.Parents[i].ParentRef.Kind; kind != nil {
				*kind = "Changed"
			}
			stamp(status.Parents[i].Conditions, metav1.Now())
		}
	}
	for i := range objects {
		if !equality.Semantic.DeepEqual(objects[i], copies[i]) {
			t.Errorf("a status shares memory with %+v", objects[i])
		}
	}
}

// The caller compares results to know what to write and to send. So the same objects must have
// the same result, also in another order.
func TestCompileIsStable(t *testing.T) {
	w := newWorld(t, everything)
	settle(w.serve())
	first := w.compile()
	want := describe(t, first)
	for range 20 {
		backwards(w.in.HTTPRoutes)
		backwards(w.in.Gateways)
		backwards(w.in.Policies)
		if got := describe(t, w.compile()); got != want {
			t.Fatalf("the result is\n%s\nand was\n%s", got, want)
		}
	}
	for object, status := range first.HTTPRoutes {
		if !equality.Semantic.DeepEqual(object.Status, *status) {
			t.Errorf("the status of %s does not settle: %+v, %+v", object.Name, object.Status, status)
		}
	}
}

func backwards[T any](objects []T) {
	for i, j := 0, len(objects)-1; i < j; i, j = i+1, j-1 {
		objects[i], objects[j] = objects[j], objects[i]
	}
}

func describe(t *testing.T, result *Result) string {
	t.Helper()
	text, err := json.Marshal(result.State)
	if err != nil {
		t.Fatal(err)
	}
	fronts, err := json.Marshal(result.Fronts)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(routesOf(result), "\n") + "\n" + strings.Join(conditionsOf(result), "\n") + "\n" + string(text) + "\n" + string(fronts)
}

// BenchmarkCompile compiles 1,000 HTTPRoutes with host names and a Service of their own.
func BenchmarkCompile(b *testing.B) {
	w := newWorld(b, oneGateway)
	for i := range 1000 {
		w.add(b, strings.ReplaceAll(services, "{name: a", fmt.Sprintf("{name: a-%d", i)))
		w.in.HTTPRoutes = append(w.in.HTTPRoutes, manyRoute(i))
	}
	settle(w.serve())
	b.ReportAllocs()
	for b.Loop() {
		if result := w.compile(); len(result.State.Routes) != 1000 {
			b.Fatalf("there are %d routes", len(result.State.Routes))
		}
	}
}

func manyRoute(i int) *gwv1.HTTPRoute {
	port := gwv1.PortNumber(8080)
	route := &gwv1.HTTPRoute{}
	route.Name, route.Namespace = fmt.Sprintf("r-%d", i), "infra"
	route.CreationTimestamp = metav1.NewTime(time.Unix(1_700_000_000+int64(i), 0))
	route.Spec.ParentRefs = []gwv1.ParentReference{{Name: "g"}}
	route.Spec.Hostnames = []gwv1.Hostname{gwv1.Hostname(fmt.Sprintf("r-%d.example.com", i))}
	prefix, path := gwv1.PathMatchPathPrefix, "/"
	route.Spec.Rules = []gwv1.HTTPRouteRule{{
		Matches: []gwv1.HTTPRouteMatch{{Path: &gwv1.HTTPPathMatch{Type: &prefix, Value: &path}}},
		BackendRefs: []gwv1.HTTPBackendRef{{BackendRef: gwv1.BackendRef{
			BackendObjectReference: gwv1.BackendObjectReference{Name: gwv1.ObjectName(fmt.Sprintf("a-%d", i)), Port: &port},
		}}},
	}}
	return route
}
