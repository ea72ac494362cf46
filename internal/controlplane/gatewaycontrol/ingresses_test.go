package gatewaycontrol

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLeftIngress has Ingresses that kedge serves no longer, or never has. It takes its own
// addresses from them.
func TestLeftIngress(t *testing.T) {
	const others = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: other}
spec: {controller: example.com/other}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: theirs}
spec: {ingressClassName: other}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: nobodys}
spec: {ingressClassName: gone}
status: {loadBalancer: {ingress: [{ip: 192.0.2.9}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: once}
spec: {ingressClassName: gone}
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}
---
`
	run(t, nodes+class+app+anIngress+others, func(w *world) {
		addresses := func(name string) string {
			w.settle()
			got, err := w.api.NetworkingV1().Ingresses("shop").Get(w.ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Status.LoadBalancer.Ingress) == 0 {
				return ""
			}
			return got.Status.LoadBalancer.Ingress[0].IP
		}
		service := w.shared()
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		if _, err := w.api.CoreV1().Services(service.Namespace).UpdateStatus(w.ctx, service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"web": "192.0.2.1", "theirs": "192.0.2.1", "nobodys": "192.0.2.9", "once": ""} {
			if got := addresses(name); got != want {
				t.Errorf("the Ingress %s has the address %q, want %q", name, got, want)
			}
		}
		// The only Ingress leaves, so the Service goes, too.
		leaves := func() {
			object, err := w.api.NetworkingV1().Ingresses("shop").Get(w.ctx, "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			object.Spec.IngressClassName = &[]string{"other"}[0]
			object.Status.LoadBalancer.Ingress = []netv1.IngressLoadBalancerIngress{{IP: "192.0.2.1"}}
			if _, err := w.api.NetworkingV1().Ingresses("shop").Update(w.ctx, object, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		leaves()
		if got := addresses("web"); got != "" || w.shared() != nil {
			t.Errorf("an Ingress that left has the address %q, and the Service is %v", got, w.shared())
		}
		w.apply(others) // somebody insists on the addresses
		if got := addresses("once"); got != "192.0.2.1" {
			t.Errorf("kedge takes the same addresses twice: %q", got)
		}
		// The other controller has the same addresses.
		leaves()
		if got := addresses("web"); got != "192.0.2.1" {
			t.Errorf("kedge takes the addresses of another controller: %q", got)
		}
	})
}
