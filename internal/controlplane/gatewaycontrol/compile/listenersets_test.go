package compile

import (
	"testing"
)

// These follow the conformance tests of the Gateway API, too.
func TestListenerSets(t *testing.T) {
	const http = `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: All}}
  listeners:
  - {name: own, port: 80, protocol: HTTP, hostname: own.example}
---`
	tests := map[string]struct {
		manifests string
		wanted    []string
	}{
		"served": {
			manifests: http + `
kind: ListenerSet
metadata: {name: s, generation: 4}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 80, protocol: HTTP, hostname: a.example}
  - {name: b, port: 8080, protocol: HTTP}`,
			wanted: []string{
				"g sets=1", "s Accepted=True Accepted", "s Programmed=True Programmed",
				"s/a Accepted=True Accepted", "s/a Programmed=True Programmed", "s/a ResolvedRefs=True ResolvedRefs", "s/a Conflicted=False NoConflicts",
				"s/b Programmed=True Programmed",
			},
		},
		"conflicts of host names": {
			manifests: http + `
kind: ListenerSet
metadata: {name: with-gateway}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 80, protocol: HTTP, hostname: a.example}
  - {name: conflict, port: 80, protocol: HTTP, hostname: own.example}
  - {name: first, port: 80, protocol: HTTP, hostname: first.example}
---
kind: ListenerSet
metadata: {name: only-conflict}
spec:
  parentRef: {name: g}
  listeners:
  - {name: conflict, port: 80, protocol: HTTP, hostname: own.example}
---
kind: ListenerSet
metadata: {name: with-set}
spec:
  parentRef: {name: g}
  listeners:
  - {name: b, port: 80, protocol: HTTP, hostname: b.example}
  - {name: second, port: 80, protocol: HTTP, hostname: first.example}`,
			wanted: []string{
				"g sets=2", "g Accepted=True Accepted", "g/own Accepted=True Accepted", "g/own Programmed=True Programmed",
				"with-gateway Accepted=True ListenersNotValid", "with-gateway Programmed=True Programmed",
				"with-gateway/a Programmed=True Programmed", "with-gateway/first Programmed=True Programmed",
				"with-gateway/conflict Accepted=False HostnameConflict", "with-gateway/conflict Programmed=False HostnameConflict",
				"with-gateway/conflict Conflicted=True HostnameConflict",
				"only-conflict Accepted=False ListenersNotValid", "only-conflict Programmed=False ListenersNotValid",
				"with-set Accepted=True ListenersNotValid", "with-set Programmed=True Programmed",
				"with-set/b Programmed=True Programmed", "with-set/second Conflicted=True HostnameConflict",
			},
		},
		"conflicts of protocols": {
			manifests: http + `
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 80, protocol: HTTP, hostname: a.example}
  - {name: tcp, port: 80, protocol: TCP}
  - {name: b, port: 80, protocol: HTTP, hostname: b.example}
  - {name: one, port: 90, protocol: TCP}
  - {name: two, port: 90, protocol: HTTP}`,
			wanted: []string{
				"s/a Programmed=True Programmed", "s/b Programmed=True Programmed",
				"s/tcp Accepted=False ProtocolConflict", "s/tcp Programmed=False ProtocolConflict", "s/tcp Conflicted=True ProtocolConflict",
				"s/one Conflicted=True ProtocolConflict", "s/two Conflicted=True ProtocolConflict",
			},
		},
		"the kinds of routes": {
			manifests: http + `
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}, allowedRoutes: {kinds: [{kind: HTTPRoute}]}}`,
			wanted: []string{"g Accepted=True Accepted", "s/tls ResolvedRefs=False InvalidRouteKinds", "s Accepted=False ListenersNotValid"},
		},
		"grants name the listener set": {
			manifests: http + `
kind: ReferenceGrant
metadata: {name: gateways, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [{group: "", kind: Secret}]
---
kind: ReferenceGrant
metadata: {name: sets, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: ListenerSet, namespace: third}]
  to: [{group: "", kind: Secret}]
---
kind: ListenerSet
metadata: {name: granted, namespace: third}
spec:
  parentRef: {name: g, namespace: infra}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: a.example, tls: {certificateRefs: [{name: certificate, namespace: other}]}}
---
kind: ListenerSet
metadata: {name: not-granted}
spec:
  parentRef: {name: g}
  listeners:
  - {name: https, port: 443, protocol: HTTPS, hostname: b.example, tls: {certificateRefs: [{name: certificate, namespace: other}]}}`,
			wanted: []string{
				"g sets=1", "granted Accepted=True Accepted", "granted Programmed=True Programmed", "granted/https ResolvedRefs=True ResolvedRefs",
				"not-granted Accepted=False ListenersNotValid", "not-granted Programmed=False ListenersNotValid",
				"not-granted/https ResolvedRefs=False RefNotPermitted",
			},
		},
		"the Gateway is not accepted": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: own, port: 80, protocol: INVALID}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 80, protocol: HTTP}`,
			wanted: []string{"g sets=0", "s Accepted=False ParentNotAccepted", "s Programmed=False ParentNotAccepted", "s/a Programmed=False Invalid"},
		},
		"clients of a listener set": {
			manifests: `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: missing}]}}}}
  listeners:
  - {name: own, port: 80, protocol: HTTP}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}`,
			wanted: []string{"s/a Accepted=False NoValidCACertificate", "s Accepted=False ListenersNotValid"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { expect(t, newWorld(t, test.manifests).serve(), test.wanted...) })
	}
}

func TestAllowedListeners(t *testing.T) {
	tests := map[string]struct {
		allowed string
		// same, selected and third are whether listener sets of these namespaces are allowed.
		same, selected, third bool
	}{
		"not given":        {allowed: "{}"},
		"no namespaces":    {allowed: "{allowedListeners: {}}"},
		"none":             {allowed: "{allowedListeners: {namespaces: {from: None}}}"},
		"same":             {allowed: "{allowedListeners: {namespaces: {from: Same}}}", same: true},
		"all":              {allowed: "{allowedListeners: {namespaces: {from: All}}}", same: true, selected: true, third: true},
		"selector":         {allowed: "{allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {allowed: ns}}}}}", selected: true},
		"no selector":      {allowed: "{allowedListeners: {namespaces: {from: Selector}}}"},
		"a wrong selector": {allowed: "{allowedListeners: {namespaces: {from: Selector, selector: {matchExpressions: [{key: a, operator: Wrong}]}}}}"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, `
kind: Namespace
metadata: {name: selected, labels: {allowed: ns}}
---
kind: Gateway
metadata: {name: g}
spec: `+test.allowed+`
---
kind: ListenerSet
metadata: {name: same}
spec: {parentRef: {name: g}, listeners: [{name: http, port: 80, protocol: HTTP, hostname: same.example}]}
---
kind: ListenerSet
metadata: {name: selected, namespace: selected}
spec: {parentRef: {name: g, namespace: infra}, listeners: [{name: http, port: 80, protocol: HTTP, hostname: selected.example}]}
---
kind: ListenerSet
metadata: {name: third, namespace: third}
spec: {parentRef: {name: g, namespace: infra}, listeners: [{name: http, port: 80, protocol: HTTP, hostname: third.example}]}
---
kind: ListenerSet
metadata: {name: of-another-gateway}
spec: {parentRef: {name: h}, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
kind: ListenerSet
metadata: {name: of-another-kind}
spec: {parentRef: {name: g, kind: Service, group: ""}, listeners: [{name: http, port: 80, protocol: HTTP}]}`)
			g := newWorld(t, "kind: Gateway\nmetadata: {name: x}\nspec:\n  gatewayClassName: kedge\n  listeners: [{name: own, port: 80, protocol: HTTP, hostname: own.example}]").in.Gateways[0]
			w.in.Gateways[0].Spec.GatewayClassName, w.in.Gateways[0].Spec.Listeners = "kedge", g.Spec.Listeners
			result := w.serve()
			wanted := []string{"!of-another-gateway", "!of-another-kind", "g Accepted=True Accepted"}
			for set, allowed := range map[string]bool{"same": test.same, "selected": test.selected, "third": test.third} {
				if allowed {
					wanted = append(wanted, set+" Accepted=True Accepted", set+"/http Programmed=True Programmed")
				} else {
					wanted = append(wanted, set+" Accepted=False NotAllowed", set+" Programmed=False NotAllowed", "!"+set+"/http")
				}
			}
			expect(t, result, wanted...)
		})
	}
}

// What a listener set refers to is not read if the Gateway does not allow the listener set.
func TestForbiddenListenerSet(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  listeners:
  - {name: own, port: 80, protocol: HTTP}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}`)
	result := w.serve()
	if len(result.Secrets) > 0 || len(result.State.Certificates) > 0 {
		t.Errorf("the Secrets are %v", result.Secrets)
	}
	c := newCompiler(&w.in)
	c.gateways()
	c.decide()
	if l := c.listeners[1]; l.usable || l.admits(w.namespaces["infra"]) {
		t.Errorf("the listener is %+v", l)
	}
}

// A listener set waits for its Gateway.
func TestListenerSetPending(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: own, port: 80, protocol: HTTP}
---
kind: ListenerSet
metadata: {name: s}
spec:
  parentRef: {name: g}
  listeners:
  - {name: a, port: 8080, protocol: HTTP}`)
	expect(t, w.compile(), "s Accepted=True Accepted", "s Programmed=False ParentNotProgrammed", "s/a Programmed=False Pending")
	service := w.giveService(w.compile().Fronts[0])
	service.Spec.Ports = service.Spec.Ports[:1]
	expect(t, w.compile(), "g Programmed=True Programmed", "s Programmed=False Pending", "s/a Programmed=False Pending")
}
