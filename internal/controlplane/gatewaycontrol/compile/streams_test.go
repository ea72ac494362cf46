package compile

import (
	"encoding/json"
	"testing"
)

func TestStreams(t *testing.T) {
	const gateway = services + `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tcp, port: 9000, protocol: TCP}
  - {name: udp, port: 9000, protocol: UDP}
---
`
	for name, test := range map[string]struct {
		route string
		// want is the JSON of the stream that nodes get, and lines are for expectRoutes.
		want  string
		lines []string
	}{
		"TCPRoute": {
			route: `
kind: TCPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 8080, weight: 70}, {name: b, port: 8080, weight: 30}, {name: a, port: 9090, weight: 0}]}]}`,
			want:  `{"targets":[{"backend":"infra/a:8080","weight":70},{"backend":"infra/b:8080","weight":30},{"backend":"infra/a:9090","weight":0}]}`,
			lines: []string{"TCPRoute/r g ResolvedRefs=True ResolvedRefs", "g/tcp attached=1", "g/udp attached=0", "g/tls attached=0"},
		},
		"UDPRoute with a part that is refused": {
			route: `
kind: UDPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: b, port: 8080}, {name: missing, port: 8080}]}]}`,
			want:  `{"targets":[{"backend":"infra/b:8080+udp","weight":1},{"fault":500,"weight":1}]}`,
			lines: []string{"UDPRoute/r g Accepted=True Accepted", "UDPRoute/r g ResolvedRefs=False BackendNotFound", "g/udp attached=1"},
		},
		"TLSRoute": {
			route: `
kind: TLSRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], hostnames: [a.example, "*.b.example"], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			want:  `{"targets":[{"backend":"infra/a:8080","weight":1}]}`,
			lines: []string{"TLSRoute/infra/r hostnames=a.example,*.b.example", "infra/g/tls routes=TLSRoute/infra/r", "g/tcp attached=0"},
		},
		"TLSRoute without a backend": {
			route: `
kind: TLSRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], hostnames: [a.example], rules: [{backendRefs: []}]}`,
			want: `{"targets":[{"fault":500,"weight":1}]}`,
		},
		"more than one rule": {
			route: `
kind: TCPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 8080}]}, {name: two, backendRefs: [{name: b, port: 8080}]}]}`,
			want:  `{"targets":[{"backend":"infra/a:8080","weight":1}]}`,
			lines: []string{"TCPRoute/r g PartiallyInvalid=True UnsupportedValue"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			result := newWorld(t, gateway+test.route).compile()
			expectRoutes(t, result, test.lines...)
			for _, route := range result.State.Routes {
				text, err := json.Marshal(route.Stream)
				if err != nil {
					t.Fatal(err)
				}
				if string(text) != test.want || len(route.Rules) > 0 {
					t.Errorf("the stream is\n%s, want\n%s", text, test.want)
				}
			}
			if len(result.State.Routes) != 1 {
				t.Errorf("the nodes get %d routes", len(result.State.Routes))
			}
		})
	}
}
