package compile

import (
	"slices"
	"strings"
	"testing"
)

// Gateways that share the addresses of the nodes share ports, too.
func TestSharedPorts(t *testing.T) {
	tests := map[string]struct {
		// older and newer are listeners of Gateways with these names.
		older, newer string
		// more is more of the newer Gateway.
		more   string
		wanted []string
	}{
		"the same host name": {
			older:  `{name: a, port: 80, protocol: HTTP}`,
			newer:  `{name: b, port: 80, protocol: HTTP}`,
			wanted: []string{"older/a Programmed=True Programmed", "newer/b Programmed=True Programmed"},
		},
		"another protocol": {
			older: `{name: a, port: 80, protocol: HTTP}`,
			newer: `{name: b, port: 80, protocol: TCP}`,
			wanted: []string{
				"older/a Programmed=True Programmed", "older/a Conflicted=False NoConflicts",
				"newer/b Accepted=False PortUnavailable", "newer/b Conflicted=True ProtocolConflict", "newer/b Programmed=False ProtocolConflict",
				"newer Accepted=False ListenersNotValid", "newer Programmed=False Invalid",
			},
		},
		"two for TCP": {
			older:  `{name: a, port: 80, protocol: TCP}`,
			newer:  `{name: b, port: 80, protocol: TCP}, {name: c, port: 81, protocol: TCP}`,
			wanted: []string{"newer/b Accepted=False PortUnavailable", "newer/c Programmed=True Programmed", "newer Accepted=True ListenersNotValid"},
		},
		"TCP and UDP": {
			older:  `{name: a, port: 80, protocol: TCP}`,
			newer:  `{name: b, port: 80, protocol: UDP}`,
			wanted: []string{"newer/b Programmed=True Programmed"},
		},
		"HTTPS and TLS with different host names": {
			older:  `{name: a, port: 443, protocol: HTTPS, hostname: a.example, tls: {certificateRefs: [{name: certificate}]}}`,
			newer:  `{name: b, port: 443, protocol: TLS, hostname: b.example, tls: {mode: Passthrough}}`,
			wanted: []string{"newer/b Programmed=True Programmed"},
		},
		"HTTPS and TLS with the same host name": {
			older:  `{name: a, port: 443, protocol: HTTPS, hostname: a.example, tls: {certificateRefs: [{name: certificate}]}}`,
			newer:  `{name: b, port: 443, protocol: TLS, hostname: a.example, tls: {mode: Passthrough}}`,
			wanted: []string{"newer/b Accepted=False PortUnavailable", "newer/b Conflicted=True HostnameConflict"},
		},
		"clients must show certificates to one of them": {
			older:  `{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}`,
			newer:  `{name: b, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}`,
			more:   `tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: authority}]}}}}`,
			wanted: []string{"newer/b Accepted=False PortUnavailable", "newer/b Conflicted=True HostnameConflict"},
		},
		"the newer has addresses of its own": {
			older:  `{name: a, port: 80, protocol: HTTP}`,
			newer:  `{name: b, port: 80, protocol: TCP}`,
			more:   `addresses: [{value: 192.0.2.7}]`,
			wanted: []string{"newer/b Programmed=True Programmed"},
		},
		"the older one is not served": {
			older:  `{name: a, port: 80, protocol: TLS, tls: {certificateRefs: [{name: missing}]}}`,
			newer:  `{name: b, port: 80, protocol: TCP}`,
			wanted: []string{"older Accepted=False ListenersNotValid", "newer/b Programmed=True Programmed"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			more := test.more
			if more == "" {
				more = "addresses: []"
			}
			w := newWorld(t, `
kind: Gateway
metadata: {name: older}
spec:
  gatewayClassName: kedge
  listeners: [`+test.older+`]
---
kind: Gateway
metadata: {name: newer}
spec:
  gatewayClassName: kedge
  `+more+`
  listeners: [`+test.newer+`]`)
			slices.Reverse(w.in.Gateways) // their age counts, and not their order
			result := w.serve()
			expect(t, result, test.wanted...)
			for _, condition := range result.Gateways[w.in.Gateways[0]].Listeners[0].Conditions {
				if condition.Reason == "PortUnavailable" && !strings.Contains(condition.Message, "infra/older") {
					t.Errorf("the message does not name the older Gateway: %s", condition.Message)
				}
			}
		})
	}
}

// A listener set of an older Gateway comes before a younger Gateway. One that is not served
// does not keep anybody away.
func TestSharedPortsOfListenerSets(t *testing.T) {
	manifests := func(protocol string) string {
		return `
kind: Gateway
metadata: {name: older}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: own, port: 80, protocol: ` + protocol + `}
---
kind: Gateway
metadata: {name: newer}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: tcp, port: 90, protocol: TCP}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: older}
  listeners:
  - {name: tcp, port: 90, protocol: TCP}`
	}
	expect(t, newWorld(t, manifests("HTTP")).serve(), "s/tcp Programmed=True Programmed", "newer/tcp Accepted=False PortUnavailable")
	expect(t, newWorld(t, manifests("INVALID")).serve(), "s/tcp Programmed=False Invalid", "newer/tcp Programmed=True Programmed")
}

func TestOverlaps(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: a, port: 443, protocol: HTTPS, hostname: foo.example.com, tls: {certificateRefs: [{name: certificate}]}}
  - {name: b, port: 443, protocol: HTTPS, hostname: foo.example.org, tls: {certificateRefs: [{name: certificate}]}}
  - {name: c, port: 443, protocol: HTTPS, hostname: "*.example.com", tls: {certificateRefs: [{name: certificate}]}}
  - {name: d, port: 8443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}`)
	expect(t, w.serve(), "g/a OverlappingTLSConfig=True OverlappingHostnames", "g/c OverlappingTLSConfig=True OverlappingHostnames",
		"!g/b OverlappingTLSConfig", "!g/d OverlappingTLSConfig")
}
