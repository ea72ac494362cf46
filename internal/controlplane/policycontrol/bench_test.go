package policycontrol

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// crowd makes a model with 50 namespaces, 20 policies and 40 pods in each of them, and 20
// nodes, one of which is watched. Half of the policies name pods of other namespaces.
func crowd() (*model, *watcher, func(i int) *pod) {
	m := newModel(func(string) {})
	m.setActive(true)
	w := m.watch("node-0")
	port := intstr.FromString("web")
	for n := range 50 {
		namespace := fmt.Sprint("ns-", n)
		m.setNamespace(namespace, map[string]string{"kubernetes.io/metadata.name": namespace, "team": fmt.Sprint(n % 5)})
		for i := range 20 {
			p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("policy-", i)}}
			p.Spec.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint("app-", i)}
			peer := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i+1)}}}
			if i%2 == 0 {
				peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 5)}}
			}
			p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}, Ports: []networkingv1.NetworkPolicyPort{{Port: &port}}}}
			p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{peer}}}
			m.setPolicy(p)
		}
	}
	podAt := func(i int) *pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns-", i%50), Name: fmt.Sprint("pod-", i), Labels: map[string]string{"app": fmt.Sprint("app-", i/50%20), "hash": "x"}}}
		p.Spec.NodeName = fmt.Sprint("node-", i%20)
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}
		p.Status.PodIP = netip.AddrFrom4([4]byte{10, 42, byte(i >> 8), byte(i)}).String()
		return podOf(p)
	}
	for i := range 2000 {
		m.setPod(podAt(i))
	}
	m.takeUpdate("node-0", w)
	return m, w, podAt
}

// BenchmarkPod changes one pod of 2,000, with 1,000 policies.
func BenchmarkPod(b *testing.B) {
	m, w, podAt := crowd()
	other := netip.MustParseAddr("10.43.99.99")
	for name, change := range map[string]func(*pod, int){
		"address": func(p *pod, i int) { p.addresses = []netip.Addr{other} },
		"labels":  func(p *pod, i int) { p.labels = map[string]string{"app": fmt.Sprint("app-", i%20)} },
		"nothing": func(*pod, int) {},
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				p := podAt(i % 2000)
				if i%2 == 0 {
					change(p, i)
				}
				m.setPod(p)
				m.takeUpdate("node-0", w)
			}
		})
	}
}

// BenchmarkPolicy changes one policy of 1,000, with 2,000 pods.
func BenchmarkPolicy(b *testing.B) {
	m, w, _ := crowd()
	for i := range b.N {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns-0", Name: "policy-0"}}
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": "app-0"}
		peer := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"n": fmt.Sprint(i)}}}
		p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
		m.setPolicy(p)
		m.takeUpdate("node-0", w)
	}
}

// BenchmarkWhole makes the first update of a node.
func BenchmarkWhole(b *testing.B) {
	m, _, _ := crowd()
	for range b.N {
		w := m.watch("node-0")
		m.takeUpdate("node-0", w)
		m.leaveNode("node-0", w)
	}
}
