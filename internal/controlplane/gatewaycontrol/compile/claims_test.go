package compile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
)

// TestRefusedPorts has a listener on ports of the addresses that all share. The administrator has
// opened port 5432.
func TestRefusedPorts(t *testing.T) {
	for listener, want := range map[string]string{
		"port: 80, protocol: HTTP": "",
		"port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}": "",
		"port: 443, protocol: TLS, hostname: a.example, tls: {mode: Passthrough}":   "",
		"port: 5432, protocol: TCP":   "",
		"port: 80, protocol: TCP":     "port 80 is for HTTP",
		"port: 443, protocol: TCP":    "port 443 is for HTTPS and TLS",
		"port: 443, protocol: UDP":    "port 443 is for HTTPS and TLS",
		"port: 443, protocol: HTTP":   "port 443 is for HTTPS and TLS",
		"port: 10250, protocol: TCP":  "gateway-ports: [10250]",
		"port: 30080, protocol: HTTP": "gateway-ports: [30080]",
	} {
		for _, own := range []bool{false, true} {
			addresses := "[]"
			if own {
				addresses, want = "[{value: 192.0.2.7}]", ""
			}
			w := newWorld(t, fmt.Sprintf(`
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  addresses: %s
  listeners: [{name: asked, %s}, {name: web, port: 80, protocol: HTTP, hostname: b.example}]`, addresses, listener))
			w.in.Ports = []uint16{5432}
			result := w.serve()
			message := ""
			for _, condition := range result.Gateways[w.in.Gateways[0]].Listeners[0].Conditions {
				if condition.Reason == string(gwv1.ListenerReasonPortUnavailable) {
					message = condition.Message
				}
			}
			if want == "" && message != "" || !strings.Contains(message, want) {
				t.Errorf("%s: %q, want %q", listener, message, want)
			}
			if want != "" {
				expect(t, result, "g/asked Accepted=False PortUnavailable", "g/web Programmed=True Programmed")
				for _, port := range result.Fronts[0].Ports {
					if port.Number != 80 {
						t.Errorf("the front has port %d", port.Number)
					}
				}
			}
		}
	}
}

// tenants are a bank, which has bank.example and *.bank.example, and a thief with whatever wants
// some of that.
const tenants = `
kind: Gateway
metadata: {namespace: bank, name: bank}
spec:
  gatewayClassName: kedge
  listeners: [{name: web, port: 80, protocol: HTTP}]
---
kind: HTTPRoute
metadata: {namespace: bank, name: bank}
spec:
  parentRefs: [{name: bank}]
  hostnames: [bank.example, "*.bank.example"]
  rules: [{backendRefs: [{name: app, port: 80}]}]
---
`

// TestOwners has two namespaces on the shared front. Requests to hosts of the first one go to
// nobody else.
func TestOwners(t *testing.T) {
	for name, test := range map[string]struct {
		manifests string
		// status has lines of conditionsOf, and routes REASON of HTTPRoutes of the thief.
		status, routes []string
		// conflicts has what owners of hosts are told.
		conflicts int
	}{
		"a route with a more specific path": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g}], hostnames: [bank.example], rules: [{matches: [{path: {type: Exact, value: /login}}]}]}`,
			status: []string{"g/web Programmed=True Programmed"}, routes: []string{"r HostnameConflict"}, conflicts: 1,
		},
		"a listener for the host": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP, hostname: bank.example}, {name: own, port: 80, protocol: HTTP, hostname: thief.example}]}
---
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g, sectionName: web}]}`,
			status: []string{"g/web Conflicted=True HostnameConflict", "g/web Programmed=False HostnameConflict", "g/own Programmed=True Programmed"}, routes: []string{"r HostnameConflict"}, conflicts: 1,
		},
		"a host below its wildcard": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g}], hostnames: [login.bank.example, thief.example]}`,
			routes: []string{"r Accepted"}, conflicts: 1,
		},
		"a wider wildcard, which gets the rest": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP, hostname: "*.example"}]}
---
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g}]}`,
			routes: []string{"r Accepted"},
		},
		"a listener set of another namespace": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, allowedListeners: {namespaces: {from: All}}, listeners: [{name: web, port: 80, protocol: HTTP, hostname: thief.example}]}
---
kind: ListenerSet
metadata: {namespace: other, name: s}
spec: {parentRef: {name: g, namespace: thief}, listeners: [{name: web, port: 80, protocol: HTTP, hostname: bank.example}]}`,
			status: []string{"s/web Conflicted=True HostnameConflict"}, conflicts: 1,
		},
		"an address of its own": {
			manifests: `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, addresses: [{value: 192.0.2.7}], listeners: [{name: web, port: 80, protocol: HTTP, hostname: bank.example}]}
---
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g}]}`,
			status: []string{"g/web Programmed=True Programmed"}, routes: []string{"r Accepted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tenants+test.manifests)
			run := Begin(&w.in)
			owners := hosts.Decide(run.Claims(), nil)
			result := w.serve()
			expect(t, result, test.status...)
			var routes []string
			for route, status := range result.HTTPRoutes {
				for _, condition := range status.Parents[0].Conditions {
					if condition.Type == string(gwv1.RouteConditionAccepted) && route.Namespace == "thief" {
						routes = append(routes, route.Name+" "+condition.Reason)
						if partly := len(route.Spec.Hostnames) > 1; partly != strings.Contains(condition.Message, "login.bank.example is not served") {
							t.Errorf("the route is told %q", condition.Message)
						}
					}
				}
			}
			if !slices.Equal(routes, test.routes) {
				t.Errorf("routes %q, want %q", routes, test.routes)
			}
			if got := owners.Conflicts(); len(got) != test.conflicts {
				t.Errorf("there are %d conflicts, want %d", len(got), test.conflicts)
			}
			for _, f := range front.Partition(result.Fronts, result.State.Routes, owners) {
				if f.Name == front.Shared {
					checkBank(t, f)
				}
			}
		})
	}
}

// checkBank checks that requests to the hosts of the bank reach only its routes.
func checkBank(t *testing.T, f front.Front) {
	t.Helper()
	for _, host := range []string{"bank.example", "login.bank.example"} {
		best := ""
		for _, l := range f.Ports[0].Listeners {
			if fits := l.Hostname == host || l.Hostname == "" || covers(l.Hostname, host); fits && len(l.Hostname) > len(best) {
				best = l.Hostname
			}
		}
		served := false
		for _, l := range f.Ports[0].Listeners {
			if l.Hostname != best {
				continue
			}
			for _, route := range l.Routes {
				// Routes whose hosts are all refused are at no listener, and others are not for the host.
				if route == "HTTPRoute/bank/bank" {
					served = true
				} else if l.Namespace != "bank" && best != "" {
					t.Errorf("%s may reach %s at the listener %q", host, route, best)
				}
			}
		}
		if !served {
			t.Errorf("%s does not reach the bank", host)
		}
	}
}

// TestClaimAge has an old Gateway whose new route names the host of somebody else.
func TestClaimAge(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {namespace: thief, name: g}
spec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP}]}
---`+tenants+`
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec: {parentRefs: [{name: g}], hostnames: [bank.example]}`)
	owners := hosts.Decide(Begin(&w.in).Claims(), nil)
	if !owners.Admits("bank", "bank.example") || owners.Admits("thief", "bank.example") {
		t.Error("an old Gateway makes its new routes old")
	}
}

// TestClaimsOfManyListeners has a route that wants its hosts on each listener of two Gateways. There is one
// claim for each host, as old as the older Gateway.
func TestClaimsOfManyListeners(t *testing.T) {
	var listeners []string
	for i := range 60 {
		listeners = append(listeners, fmt.Sprintf("{name: l%d, port: 80, protocol: HTTP, hostname: '*.h%[1]d.example'}, {name: s%[1]d, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}, hostname: '*.h%[1]d.example'}", i))
	}
	gateway := "kind: Gateway\nmetadata: {name: %s}\nspec: {gatewayClassName: kedge, listeners: [{name: web, port: 80, protocol: HTTP}, %s]}\n---\n"
	w := newWorld(t, fmt.Sprintf(gateway, "a", strings.Join(listeners, ", "))+fmt.Sprintf(gateway, "b", strings.Join(listeners, ", "))+`
kind: HTTPRoute
metadata: {name: r}
spec: {parentRefs: [{name: a}, {name: b}], hostnames: [x.h1.example, y.h1.example]}`)
	count := map[string]int{}
	for _, claim := range Begin(&w.in).Claims() {
		if claim.Kind == "HTTPRoute" {
			count[claim.Host]++
		}
	}
	if want := map[string]int{"x.h1.example": 1, "y.h1.example": 1}; !maps.Equal(count, want) {
		t.Errorf("the route claims %v, want %v", count, want)
	}
}
