package compile

import (
	"testing"
)

// The manifests and what is expected of them follow the conformance tests of the Gateway API.
func TestRoutes(t *testing.T) {
	tests := map[string]struct {
		manifests string
		// wanted are lines for expectRoutes.
		wanted []string
	}{
		"attached": {
			manifests: oneGateway + `
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			wanted: []string{
				"HTTPRoute/r g Accepted=True Accepted", "HTTPRoute/r g ResolvedRefs=True ResolvedRefs", "HTTPRoute/r parents=1",
				"g/http attached=1", "infra/g/http routes=HTTPRoute/infra/r", "HTTPRoute/infra/r hostnames=", "!HTTPRoute/r g PartiallyInvalid",
			},
		},
		"a Gateway of another controller": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec: {gatewayClassName: others, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}, {name: nowhere}, {name: a, kind: Service, group: ""}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			wanted: []string{"!HTTPRoute/r", "!HTTPRoute/infra/r"},
		},
		"by the name of a listener, by its port, and by both": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: one, port: 80, protocol: HTTP}
  - {name: two, port: 8080, protocol: HTTP}
  - {name: three, port: 8090, protocol: HTTP}
---
kind: HTTPRoute
metadata: {name: by-name}
spec: {parentRefs: [{name: g, sectionName: one}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: by-port}
spec: {parentRefs: [{name: g, port: 8080}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: by-both}
spec: {parentRefs: [{name: g, sectionName: three, port: 8090}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: no-name}
spec: {parentRefs: [{name: g, sectionName: four}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: no-port}
spec: {parentRefs: [{name: g, port: 81}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: HTTPRoute
metadata: {name: not-both}
spec: {parentRefs: [{name: g, sectionName: one, port: 8080}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			wanted: []string{
				"infra/g/one routes=HTTPRoute/infra/by-name", "infra/g/two routes=HTTPRoute/infra/by-port", "infra/g/three routes=HTTPRoute/infra/by-both",
				"g/one attached=1", "g/two attached=1", "g/three attached=1",
				"HTTPRoute/no-name g/four Accepted=False NoMatchingParent", "HTTPRoute/no-port g:81 Accepted=False NoMatchingParent",
				"HTTPRoute/no-port g:81 ResolvedRefs=True ResolvedRefs",
				"HTTPRoute/not-both g/one:8080 Accepted=False NoMatchingParent",
			},
		},
		"two references to listeners of one Gateway": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: one, port: 80, protocol: HTTP}
  - {name: two, port: 8080, protocol: HTTP}
---
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g, sectionName: one}, {name: g, sectionName: three}], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			wanted: []string{
				"HTTPRoute/r parents=2", "HTTPRoute/r g/one Accepted=True Accepted", "HTTPRoute/r g/three Accepted=False NoMatchingParent",
				"g/one attached=1", "g/two attached=0",
			},
		},
		"a namespace that listeners do not admit": {
			manifests: oneGateway + `
kind: HTTPRoute
metadata: {name: r, namespace: other}
spec: {parentRefs: [{name: g, namespace: infra}], rules: [{backendRefs: [{name: c, port: 8080}]}]}`,
			wanted: []string{
				"HTTPRoute/r g Accepted=False NotAllowedByListeners", "HTTPRoute/r g ResolvedRefs=True ResolvedRefs", "g/http attached=0", "!HTTPRoute/other/r",
			},
		},
		"kinds that listeners do not take": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}
---
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: TCPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: UDPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: b, port: 8080}]}]}`,
			wanted: []string{
				"HTTPRoute/r g Accepted=False NotAllowedByListeners", "HTTPRoute/r g ResolvedRefs=True ResolvedRefs",
				"TCPRoute/r g Accepted=False NotAllowedByListeners", "UDPRoute/r g Accepted=False NotAllowedByListeners", "g/tls attached=0",
			},
		},
		"a TLSRoute on listeners for HTTP": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}
---
kind: TLSRoute
metadata: {name: r}
spec: {parentRefs: [{name: g}], hostnames: [tls.example.com], rules: [{backendRefs: [{name: a, port: 8080}]}]}`,
			wanted: []string{"TLSRoute/r g Accepted=False NotAllowedByListeners", "g/http attached=0", "g/https attached=0"},
		},
		"host names": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: exact, port: 80, protocol: HTTP, hostname: very.specific.com}
  - {name: wildcard, port: 80, protocol: HTTP, hostname: "*.wildcard.io"}
---
kind: HTTPRoute
metadata: {name: exact-exact}
spec: {hostnames: [non.matching.com, "*.nonmatchingwildcard.io", very.specific.com], parentRefs: [{name: g}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: exact-wildcard}
spec: {hostnames: [wildcard.io, foo.wildcard.io, foo.bar.wildcard.io], parentRefs: [{name: g}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: wildcard-exact}
spec: {hostnames: ["*.specific.com"], parentRefs: [{name: g}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: none}
spec: {hostnames: [specific.but.wrong.com, wildcard.io], parentRefs: [{name: g}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: all}
spec: {parentRefs: [{name: g}], rules: [{}]}`,
			wanted: []string{
				"HTTPRoute/infra/exact-exact hostnames=very.specific.com",
				"HTTPRoute/infra/exact-wildcard hostnames=foo.wildcard.io,foo.bar.wildcard.io",
				"HTTPRoute/infra/wildcard-exact hostnames=*.specific.com", "HTTPRoute/infra/all hostnames=", "!HTTPRoute/infra/none",
				"HTTPRoute/none g Accepted=False NoMatchingListenerHostname", "HTTPRoute/none g ResolvedRefs=True ResolvedRefs",
				"g/exact attached=3", "g/wildcard attached=2",
				"infra/g/exact routes=HTTPRoute/infra/all,HTTPRoute/infra/exact-exact,HTTPRoute/infra/wildcard-exact",
			},
		},
		"a listener without its certificate": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: does-not-exist}]}}
---
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: g, sectionName: tls}], rules: [{backendRefs: [{name: does-not-exist, port: 8080}]}]}`,
			wanted: []string{
				"g/tls attached=1", "HTTPRoute/r g/tls Accepted=True Accepted", "HTTPRoute/r g/tls ResolvedRefs=False BackendNotFound", "!HTTPRoute/infra/r",
			},
		},
		"a Gateway and a listener set": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  listeners: [{name: own, port: 80, protocol: HTTP, hostname: gw.com}]
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners: [{name: sets, port: 80, protocol: HTTP, hostname: ls.com}]
---
kind: HTTPRoute
metadata: {name: gateway}
spec: {parentRefs: [{name: g}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: set}
spec: {parentRefs: [{kind: ListenerSet, name: s}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: both}
spec: {parentRefs: [{name: g}, {kind: ListenerSet, name: s}], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: one}
spec: {parentRefs: [{name: g, sectionName: sets}, {kind: ListenerSet, name: s, sectionName: sets}], rules: [{}]}`,
			wanted: []string{
				"g/own attached=2", "s/sets attached=3", "HTTPRoute/one g/sets Accepted=False NoMatchingParent", "HTTPRoute/one s/sets Accepted=True Accepted",
				"HTTPRoute/both g Accepted=True Accepted", "HTTPRoute/both s Accepted=True Accepted",
			},
		},
		"an HTTPRoute and a GRPCRoute with the same host names": {
			manifests: oneGateway + `
kind: HTTPRoute
metadata: {name: first}
spec: {parentRefs: [{name: g}], hostnames: [a.example, b.example], rules: [{}]}
---
kind: GRPCRoute
metadata: {name: second}
spec: {parentRefs: [{name: g}], hostnames: [b.example, c.example], rules: [{}]}
---
kind: GRPCRoute
metadata: {name: third}
spec: {parentRefs: [{name: g}], hostnames: [c.example], rules: [{}]}
---
kind: HTTPRoute
metadata: {name: fourth}
spec: {parentRefs: [{name: g}], rules: [{}]}`,
			wanted: []string{
				"GRPCRoute/second g Accepted=False HostnameConflict", "GRPCRoute/third g Accepted=True Accepted",
				"HTTPRoute/fourth g Accepted=False HostnameConflict", "g/http attached=2",
			},
		},
		"several TCPRoutes": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners: [{name: tcp, port: 9000, protocol: TCP}, {name: udp, port: 9000, protocol: UDP}, {name: free, port: 9001, protocol: UDP}]
---
kind: TCPRoute
metadata: {name: older}
spec: {parentRefs: [{name: g, sectionName: tcp}], rules: [{backendRefs: [{name: a, port: 8080}]}]}
---
kind: TCPRoute
metadata: {name: newer}
spec: {parentRefs: [{name: g, sectionName: tcp}], rules: [{backendRefs: [{name: b, port: 8080}]}]}
---
kind: UDPRoute
metadata: {name: older}
spec: {parentRefs: [{name: g, sectionName: udp}], rules: [{backendRefs: [{name: b, port: 8080}]}]}
---
kind: UDPRoute
metadata: {name: newer}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: b, port: 8080}]}]}`,
			wanted: []string{
				"TCPRoute/older g/tcp Accepted=True Accepted", "TCPRoute/newer g/tcp Accepted=True Accepted", "g/tcp attached=2",
				"infra/g/tcp routes=TCPRoute/infra/older", "!TCPRoute/infra/newer",
				"g/udp attached=2", "infra/g/udp routes=UDPRoute/infra/older", "g/free attached=1", "infra/g/free routes=UDPRoute/infra/newer",
			},
		},
		"rules that cannot be used": {
			manifests: oneGateway + `
kind: HTTPRoute
metadata: {name: one}
spec:
  parentRefs: [{name: g}]
  rules:
  - {name: broken, matches: [{path: {type: Telepathy, value: /a}}], backendRefs: [{name: a, port: 8080}]}
  - {backendRefs: [{name: a, port: 8080}]}
---
kind: HTTPRoute
metadata: {name: all}
spec:
  parentRefs: [{name: g}]
  rules:
  - {matches: [{path: {type: RegularExpression, value: "/a("}}], backendRefs: [{name: a, port: 8080}]}`,
			wanted: []string{
				"HTTPRoute/one g Accepted=True Accepted", "HTTPRoute/one g PartiallyInvalid=True UnsupportedValue",
				"HTTPRoute/all g Accepted=False UnsupportedValue", "!HTTPRoute/all g PartiallyInvalid", "g/http attached=1",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			expectRoutes(t, newWorld(t, services+test.manifests).compile(), test.wanted...)
		})
	}
}
