package gatewaycontrol

import (
	"fmt"
	"testing"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// TestPodsBehindBackends has a pod that ends, whose address somebody else may get, and an EndpointSlice
// with the address of a pod of another namespace.
func TestPodsBehindBackends(t *testing.T) {
	run(t, nodes+class+app+gatewayAndRoute, func(w *world) {
		behind := func() string { return fmt.Sprint(w.served().Backends["shop/web:80"].Endpoints) }
		pod := func(phase, address string) {
			w.apply("apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: web}\nspec: {nodeName: \"n\"}\nstatus: {phase: " + phase + ", podIPs: [{ip: " + address + "}]}\n")
			w.settle()
		}
		if got := behind(); got != "[10.42.0.5:8080]" {
			t.Fatalf("at first the endpoints are %s", got)
		}
		runs := func() *compiled {
			now, _ := w.compiler.newest.Get()
			return now
		}
		before := runs()
		pod("Pending", "10.42.0.5")
		if runs() == before {
			t.Error("a pod that loses addresses does not lead to a run")
		}
		before = runs()
		pod("Running", "10.42.0.5")
		w.apply("apiVersion: v1\nkind: Pod\nmetadata: {namespace: shop, name: other}\nstatus: {phase: Failed}\n")
		w.settle()
		if runs() != before {
			t.Error("a pod that changes otherwise, or that no endpoint names, leads to a run")
		}
		for what, now := range map[string][2]string{"has ended": {"Succeeded", "10.42.0.5"}, "has another address": {"Running", "10.42.0.9"}} {
			pod(now[0], now[1])
			if got := behind(); got != "[]" {
				t.Errorf("when the pod %s, the endpoints are %s", what, got)
			}
			pod("Running", "10.42.0.5")
			if got := behind(); got != "[10.42.0.5:8080]" {
				t.Errorf("when the pod is as before, the endpoints are %s", got)
			}
		}
		w.apply("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: shop, name: web-2, labels: {kubernetes.io/service-name: web}}\n" +
			"addressType: IPv4\nports: [{name: http, port: 8080, protocol: TCP}]\nendpoints: [{addresses: [10.42.0.99]}]\n")
		w.settle()
		if got := behind(); got != "[10.42.0.5:8080]" {
			t.Errorf("with the address of somebody else's pod, the endpoints are %s", got)
		}
		if got := w.condition(kinds.HTTPRoutes, "shop", "web", "ResolvedRefs"); got != "False/AddressNotPermitted" {
			t.Errorf("the route has ResolvedRefs: %s", got)
		}
	})
}

// TestPoolBehindBackends has a host outside that the administrator has allowed, and whose address then
// becomes one of a pool.
func TestPoolBehindBackends(t *testing.T) {
	const outside = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-2, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [192.0.2.241]}]
---
`
	run(t, nodes+class+app+gatewayAndRoute+outside, func(w *world) {
		behind := func() string { return fmt.Sprint(w.served().Backends["shop/web:80"].Endpoints) }
		if got := behind(); got != "[10.42.0.5:8080 192.0.2.241:80]" {
			t.Fatalf("at first the endpoints are %s", got)
		}
		w.apply(lan)
		w.settle()
		if got := behind(); got != "[10.42.0.5:8080]" {
			t.Errorf("with an address of a pool, the endpoints are %s", got)
		}
		if got := w.condition(kinds.HTTPRoutes, "shop", "web", "ResolvedRefs"); got != "False/AddressNotPermitted" {
			t.Errorf("the route has ResolvedRefs: %s", got)
		}
	})
}
