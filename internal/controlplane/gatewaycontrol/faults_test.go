package gatewaycontrol

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/hosts"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/kinds"
)

// anotherTenant has an Ingress, a Gateway and a route that want the host of anIngress.
const anotherTenant = `
apiVersion: v1
kind: Namespace
metadata: {name: thief}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: thief, name: stolen, creationTimestamp: "2020-01-01T00:00:00Z"}
spec:
  ingressClassName: kedge
  rules: [{host: shop.example, http: {paths: [{path: /login, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: thief, name: g}
spec:
  gatewayClassName: kedge
  listeners: [{name: web, port: 80, protocol: HTTP}, {name: raw, port: 10250, protocol: TCP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: thief, name: r}
spec:
  parentRefs: [{name: g}]
  hostnames: [shop.example]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
`

// TestOwners has a host that its owner had first. An older object of another namespace, which names
// it later, does not get it: also after a restart.
func TestOwners(t *testing.T) {
	younger := strings.Replace(anIngress, "name: web}", `name: web, creationTimestamp: "2025-01-01T00:00:00Z"}`, 1)
	run(t, nodes+class+app+younger, func(w *world) {
		shared := w.shared()
		shared.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		if _, err := w.api.CoreV1().Services(shared.Namespace).UpdateStatus(w.ctx, shared, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		record, err := w.api.CoreV1().Secrets(hosts.RecordName.Namespace).Get(w.ctx, hosts.RecordName.Name, metav1.GetOptions{})
		if err != nil || hosts.RecordOf(record)["shop.example"] != (hosts.Held{Namespace: "shop", Rank: 1}) {
			t.Fatalf("the record is %v, %v", record, err)
		}
		w.apply(anotherTenant)
		w.settle()
		for _, want := range []string{
			"Conflict Ingress thief/stolen ×1", "HostWanted Ingress shop/web ×1", "HostnameConflict HTTPRoute thief/r ×1", "PortUnavailable Gateway thief/g ×1",
		} {
			if got := w.events(); !slices.Contains(got, want) {
				t.Errorf("there is no Event %q: %q", want, got)
			}
		}
		for name := range w.served().Routes {
			if strings.Contains(name, "thief/stolen") {
				t.Errorf("nodes get the route %s", name)
			}
		}
		for name, want := range map[[2]string]int{{"shop", "web"}: 1, {"thief", "stolen"}: 0} {
			got, err := w.api.NetworkingV1().Ingresses(name[0]).Get(w.ctx, name[1], metav1.GetOptions{})
			if err != nil || len(got.Status.LoadBalancer.Ingress) != want {
				t.Errorf("the Ingress %v has the addresses %v, %v", name, got.Status.LoadBalancer.Ingress, err)
			}
		}
		if ports := w.shared().Spec.Ports; len(ports) != 1 || ports[0].Port != 80 {
			t.Errorf("the Service has the ports %v", ports)
		}

		// An administrator decides otherwise.
		w.apply(strings.Replace(anotherTenant, "name: thief}", "name: thief, annotations: {gateway.kedge.dev/hosts: \"shop.example, *\"}}", 1))
		w.settle()
		if got := w.condition(kinds.HTTPRoutes, "thief", "r", "Accepted"); got != "True/Accepted" {
			t.Errorf("the route of the new owner has Accepted=%s", got)
		}
		if got, want := w.events(), "NoHostName Namespace /thief ×1"; !slices.Contains(got, want) {
			t.Errorf("there is no Event %q: %q", want, got)
		}
	})
}

// TestUnreachable has an Ingress whose ports the load balancer does not serve. The user of the
// Ingress cannot see the Service that says so.
func TestUnreachable(t *testing.T) {
	secure := anIngress[:len(anIngress)-len("---\n")] + "  tls: [{hosts: [shop.example], secretName: tls}]\n---\n"
	run(t, nodes+class+app+secure, func(w *world) {
		wrong := servicelb.NotServed
		status := func(reason string, ingress ...corev1.LoadBalancerIngress) {
			shared := w.shared()
			shared.Status.LoadBalancer.Ingress = ingress
			shared.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition, Status: metav1.ConditionFalse, Reason: reason, Message: reason}}
			if _, err := w.api.CoreV1().Services(shared.Namespace).UpdateStatus(w.ctx, shared, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		addresses := func() int {
			got, err := w.api.NetworkingV1().Ingresses("shop").Get(w.ctx, "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return len(got.Status.LoadBalancer.Ingress)
		}
		unserved := func(ports ...int32) corev1.LoadBalancerIngress {
			one := corev1.LoadBalancerIngress{IP: "192.0.2.1"}
			for _, port := range ports {
				one.Ports = append(one.Ports, corev1.PortStatus{Port: port, Protocol: corev1.ProtocolTCP, Error: &wrong})
			}
			return one
		}
		status(servicelb.Waiting)
		if got := w.events(); slices.ContainsFunc(got, func(event string) bool { return strings.HasPrefix(event, servicelb.Waiting) }) {
			t.Errorf("there are the Events %q", got)
		}
		status("PortInUse", unserved(443))
		if got := w.events(); !slices.Contains(got, "PortInUse Ingress shop/web ×1") || addresses() != 1 {
			t.Errorf("without port 443 there are %d addresses and the Events %q", addresses(), got)
		}
		// The message is about the port of a Gateway now.
		before, shared := w.events(), w.shared()
		shared.Status.Conditions[0].Message = "port 5432/tcp is taken by postgres (process 7) on node a"
		if _, err := w.api.CoreV1().Services(shared.Namespace).UpdateStatus(w.ctx, shared, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if got := w.events(); !slices.Equal(got, before) {
			t.Errorf("the Events were %q, and are %q", before, got)
		}
		status("PortConflict", unserved(80, 443))
		if got := w.events(); addresses() != 0 || !slices.ContainsFunc(got, func(event string) bool { return strings.HasPrefix(event, "PortConflict Ingress shop/web") }) {
			t.Errorf("without both ports there are %d addresses and the Events %q", addresses(), got)
		}
	})
}

// TestShadowed has a Gateway that passes the TLS of a host through, for which an Ingress of the same
// namespace has a certificate.
func TestShadowed(t *testing.T) {
	secure := anIngress[:len(anIngress)-len("---\n")] + "  tls: [{hosts: [shop.example], secretName: tls}]\n---\n"
	const passing = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: shop, name: g}
spec:
  gatewayClassName: kedge
  listeners: [{name: pass, port: 443, protocol: TLS, hostname: shop.example, tls: {mode: Passthrough}}]
---
`
	for host, want := range map[string]bool{"shop.example": true, "other.example": false} {
		run(t, nodes+class+app+secure, func(w *world) {
			w.apply(strings.Replace(passing, "hostname: shop.example", "hostname: "+host, 1))
			w.settle()
			got := slices.ContainsFunc(w.events(), func(event string) bool { return strings.HasPrefix(event, "Conflict Ingress shop/web") })
			if got != want {
				t.Errorf("%s: the Ingress is told: %t", host, got)
			}
		})
	}
}
