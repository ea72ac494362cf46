package compile

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// speaking are Services with a port of each appProtocol.
const speaking = `
kind: Service
metadata: {name: speaking}
spec:
  ports:
  - {name: h2c, port: 1, appProtocol: kubernetes.io/h2c}
  - {name: ws, port: 2, appProtocol: kubernetes.io/ws}
  - {name: wss, port: 3, appProtocol: kubernetes.io/wss}
  - {name: https, port: 4, appProtocol: HTTPS}
  - {name: other, port: 5, appProtocol: example.com/other}
  - {name: grpc, port: 6, appProtocol: grpc}
---
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: kubernetes.default.svc, ports: [{port: 443}]}
---
`

func TestBackends(t *testing.T) {
	const http, grpc, tcp, udp = "HTTPRoute", "GRPCRoute", "TCPRoute", "UDPRoute"
	for name, test := range map[string]struct {
		kind, namespace, ref string
		grant                string
		// want is the name and the JSON of the backend, or else what ResolvedRefs says.
		want string
	}{
		"a Service": {
			kind: http, ref: `{name: a, port: 8080}`, want: `infra/a:8080 {"name":"infra/a:8080","endpoints":["10.42.0.1:3000"]}`,
		},
		"another port": {
			kind: http, ref: `{name: a, port: 9090}`, want: `infra/a:9090 {"name":"infra/a:9090","endpoints":["10.42.0.1:3001"]}`,
		},
		"with group and kind": {
			kind: http, ref: `{group: "", kind: Service, name: a, namespace: infra, port: 8080}`, want: `infra/a:8080 {"name":"infra/a:8080","endpoints":["10.42.0.1:3000"]}`,
		},
		"for gRPC": {
			kind: grpc, ref: `{name: a, port: 8080}`, want: `infra/a:8080+h2 {"name":"infra/a:8080","protocol":"h2c","endpoints":["10.42.0.1:3000"]}`,
		},
		"for TCP": {
			kind: tcp, ref: `{name: a, port: 8080}`, want: `infra/a:8080 {"name":"infra/a:8080","endpoints":["10.42.0.1:3000"]}`,
		},
		"for UDP": {
			kind: udp, ref: `{name: b, port: 8080}`, want: `infra/b:8080+udp {"name":"infra/b:8080","endpoints":["10.42.0.2:5353"]}`,
		},
		"h2c":               {kind: http, ref: `{name: speaking, port: 1}`, want: `infra/speaking:1+h2 {"name":"infra/speaking:1","protocol":"h2c"}`},
		"WebSocket":         {kind: http, ref: `{name: speaking, port: 2}`, want: `infra/speaking:2 {"name":"infra/speaking:2"}`},
		"WebSocket of gRPC": {kind: grpc, ref: `{name: speaking, port: 2}`, want: "UnsupportedProtocol"},
		"wss without a policy": {
			kind: http, ref: `{name: speaking, port: 3}`, want: "UnsupportedProtocol",
		},
		"https without a policy":       {kind: http, ref: `{name: speaking, port: 4}`, want: "UnsupportedProtocol"},
		"https of TCP":                 {kind: tcp, ref: `{name: speaking, port: 4}`, want: `infra/speaking:4 {"name":"infra/speaking:4"}`},
		"a protocol that nobody knows": {kind: http, ref: `{name: speaking, port: 5}`, want: `infra/speaking:5 {"name":"infra/speaking:5"}`},
		"gRPC by an HTTPRoute":         {kind: http, ref: `{name: speaking, port: 6}`, want: `infra/speaking:6+h2 {"name":"infra/speaking:6","protocol":"h2c"}`},
		"missing":                      {kind: http, ref: `{name: missing, port: 8080}`, want: "BackendNotFound"},
		"a missing port":               {kind: http, ref: `{name: a, port: 8081}`, want: "BackendNotFound"},
		"no port":                      {kind: http, ref: `{name: a}`, want: "BackendNotFound"},
		"a port of TCP for UDP":        {kind: udp, ref: `{name: a, port: 8080}`, want: "BackendNotFound"},
		"another kind":                 {kind: http, ref: `{group: example.com, kind: Bucket, name: a, port: 8080}`, want: "InvalidKind"},
		"a ServiceImport":              {kind: tcp, ref: `{group: multicluster.x-k8s.io, kind: ServiceImport, name: a, port: 8080}`, want: "InvalidKind"},
		"a name outside the cluster":   {kind: http, ref: `{name: elsewhere, port: 443}`, want: "InvalidKind"},
		"another namespace":            {kind: http, ref: `{name: c, namespace: other, port: 8080}`, want: "RefNotPermitted"},
		"missing in another namespace": {
			kind: http, ref: `{name: missing, namespace: other, port: 8080}`, want: "RefNotPermitted",
		},
		"another namespace that grants it": {
			kind: http, ref: `{name: c, namespace: other, port: 8080}`, grant: `{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}], to: [{group: "", kind: Service}]}`,
			want: `other/c:8080 {"name":"other/c:8080","endpoints":["10.42.0.3:3000"]}`,
		},
		"another namespace that grants it to other kinds": {
			kind: tcp, ref: `{name: c, namespace: other, port: 8080}`, grant: `{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}], to: [{group: "", kind: Service}]}`,
			want: "RefNotPermitted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			manifests := services + speaking + `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 80, protocol: HTTP}, {name: tcp, port: 9000, protocol: TCP}, {name: udp, port: 9000, protocol: UDP}]
---
kind: ` + test.kind + `
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [` + test.ref + `]}]}
---
`
			if test.grant != "" {
				manifests += "kind: ReferenceGrant\nmetadata: {name: grant, namespace: other}\nspec: " + test.grant
			}
			result := newWorld(t, manifests).compile()
			backends := backendNames(result)
			if len(backends) == 0 {
				expectRoutes(t, result, test.kind+"/r g Accepted=True Accepted", test.kind+"/r g ResolvedRefs=False "+test.want)
				return
			}
			text, err := json.Marshal(result.State.Backends[backends[0]])
			if err != nil {
				t.Fatal(err)
			}
			if got := backends[0] + " " + string(text); got != test.want || len(backends) != 1 {
				t.Errorf("the backends are %v:\n%s, want\n%s", backends, got, test.want)
			}
			expectRoutes(t, result, test.kind+"/r g ResolvedRefs=True ResolvedRefs")
		})
	}
}

// What a route refers to has to be looked at again when it appears. What it may not refer to is
// none of its business.
func TestServicesAskedFor(t *testing.T) {
	result := newWorld(t, services+oneGateway+`
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}}}]
    backendRefs: [{name: a, port: 8080}, {name: missing, port: 8080}, {name: c, namespace: other, port: 8080}]`).compile()
	var got []string
	for name := range result.Services {
		if name != front.Shared {
			got = append(got, name.String())
		}
	}
	slices.Sort(got)
	if want := []string{"infra/a", "infra/b", "infra/missing"}; !slices.Equal(got, want) {
		t.Errorf("the Services are %v, want %v", got, want)
	}
}

// One Service is several backends if routes use it in several ways.
func TestOneServiceInSeveralWays(t *testing.T) {
	result := newWorld(t, services+oneGateway+`
kind: HTTPRoute
metadata: {name: h}
spec: {parentRefs: [{name: g}], hostnames: [h.example], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: GRPCRoute
metadata: {name: g}
spec: {parentRefs: [{name: g}], hostnames: [g.example], rules: [{backendRefs: [{name: a, port: 8080}]}]}`).compile()
	if got, want := backendNames(result), []string{"infra/a:8080", "infra/a:8080+h2"}; !slices.Equal(got, want) {
		t.Errorf("the backends are %v, want %v", got, want)
	}
}

// Backends of routes that no listener serves do not go to the nodes.
func TestBackendsOfNoListener(t *testing.T) {
	result := newWorld(t, services+oneGateway+`
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g, sectionName: missing}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`).compile()
	if len(result.State.Backends) > 0 || len(result.State.Routes) > 0 {
		t.Errorf("nodes get %v and %v", backendNames(result), slices.Collect(maps.Keys(result.State.Routes)))
	}
	if !result.Services[types.NamespacedName{Namespace: "infra", Name: "a"}] {
		t.Error("nobody looks at the Service, which is in ResolvedRefs")
	}
}
