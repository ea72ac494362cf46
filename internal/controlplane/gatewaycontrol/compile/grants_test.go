package compile

import "testing"

func TestGranted(t *testing.T) {
	w := newWorld(t, `
kind: ReferenceGrant
metadata: {name: all, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: infra}]
  to: [{group: "", kind: Secret}]
---
kind: ReferenceGrant
metadata: {name: one, namespace: other}
spec:
  from:
  - {group: gateway.networking.k8s.io, kind: GRPCRoute, namespace: elsewhere}
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: infra}
  to: [{group: "", kind: Service, name: a}]`)
	c := newCompiler(&w.in)
	const group = "gateway.networking.k8s.io"
	tests := map[string]struct {
		fromGroup, fromKind, fromNamespace, toGroup, toKind, toNamespace, toName string
		want                                                                     bool
	}{
		"same namespace":     {group, "Gateway", "infra", "", "Secret", "infra", "x", true},
		"all of a kind":      {group, "Gateway", "infra", "", "Secret", "other", "x", true},
		"one object":         {group, "HTTPRoute", "infra", "", "Service", "other", "a", true},
		"another object":     {group, "HTTPRoute", "infra", "", "Service", "other", "b", false},
		"other kind":         {group, "Gateway", "infra", "", "ConfigMap", "other", "x", false},
		"other group":        {group, "Gateway", "infra", "example.org", "Secret", "other", "x", false},
		"other from kind":    {group, "ListenerSet", "infra", "", "Secret", "other", "x", false},
		"other from group":   {"example.org", "Gateway", "infra", "", "Secret", "other", "x", false},
		"other from place":   {group, "Gateway", "elsewhere", "", "Secret", "other", "x", false},
		"grant is elsewhere": {group, "Gateway", "infra", "", "Secret", "elsewhere", "x", false},
		"halves of two":      {group, "GRPCRoute", "elsewhere", "", "Secret", "other", "x", false},
	}
	for name, test := range tests {
		got := c.granted(test.fromGroup, test.fromKind, test.fromNamespace, test.toGroup, test.toKind, test.toNamespace, test.toName)
		if got != test.want {
			t.Errorf("%s: granted is %t", name, got)
		}
	}
}
