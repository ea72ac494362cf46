package policycontrol

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// generator makes random objects.
type generator struct{ *rand.Rand }

func pick[T any](g generator, list ...T) T { return list[g.IntN(len(list))] }

func (g generator) labels() map[string]string {
	set := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if g.IntN(3) > 0 {
			set[key] = pick(g, "a", "b", "c")
		}
	}
	return set
}

func (g generator) selector() *metav1.LabelSelector {
	switch g.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: pick(g, "app", "tier"), Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{pick(g, "a", "b"), "c"},
		}}}
	case 2:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: pick(g, "app", "tier"), Operator: pick(g, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist),
		}}}
	}
	return &metav1.LabelSelector{MatchLabels: g.labels()}
}

func (g generator) peers() (peers []networkingv1.NetworkPolicyPeer) {
	for range g.IntN(4) {
		var peer networkingv1.NetworkPolicyPeer
		switch g.IntN(5) {
		case 0:
			peer.IPBlock = &networkingv1.IPBlock{CIDR: pick(g, "10.42.0.0/16", "10.42.0.0/28", "0.0.0.0/0", "192.0.2.0/24", "fd00::/64")}
			if peer.IPBlock.CIDR == "10.42.0.0/16" {
				peer.IPBlock.Except = []string{"10.42.0.0/30", "10.42.0.8/30"}[:g.IntN(3)]
			}
		case 1:
			peer.PodSelector = g.selector()
		case 2:
			peer.NamespaceSelector = g.selector()
		default:
			peer.PodSelector, peer.NamespaceSelector = g.selector(), g.selector()
		}
		peers = append(peers, peer)
	}
	return peers
}

func (g generator) protocol() corev1.Protocol {
	return pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func (g generator) ports() (ports []networkingv1.NetworkPolicyPort) {
	for range g.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if g.IntN(3) > 0 {
			protocol := g.protocol()
			p.Protocol = &protocol
		}
		switch number := int32(80 + g.IntN(6)); g.IntN(5) {
		case 0:
		case 1:
			p.Port = &intstr.IntOrString{Type: intstr.Int, IntVal: number}
		case 2:
			last := number + int32(g.IntN(4))
			p.Port, p.EndPort = &intstr.IntOrString{Type: intstr.Int, IntVal: number}, &last
		default:
			p.Port = &intstr.IntOrString{Type: intstr.String, StrVal: pick(g, "web", "api", "none")}
		}
		ports = append(ports, p)
	}
	return ports
}

func (g generator) policy(namespace, name string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.PodSelector = *g.selector()
	p.Spec.PolicyTypes = pick(g, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Ingress", "Egress"})
	for range g.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()})
	}
	for range g.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()})
	}
	return p
}

func (g generator) pod(namespace, name string, addresses []string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint(name, "-", g.IntN(3))), Labels: g.labels()}}
	p.Spec.NodeName = pick(g, "", "n1", "n1", "n2")
	p.Spec.HostNetwork = g.IntN(12) == 0
	p.Status.Phase = pick(g, corev1.PodPending, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodFailed)
	for range g.IntN(3) {
		if p.Spec.NodeName != "" {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: pick(g, addresses...)})
		}
	}
	var c corev1.Container
	for _, name := range []string{"web", "api"} {
		if g.IntN(3) > 0 {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, Protocol: g.protocol(), ContainerPort: int32(80 + g.IntN(6))})
		}
	}
	p.Spec.Containers = []corev1.Container{c}
	return p
}

// step changes one object of the world, and tells the model.
func (g generator) step(w *world, m *model, addresses []string) {
	namespace := pick(g, "one", "two", "three")
	name := fmt.Sprint("x", g.IntN(6))
	key := namespace + "/" + name
	switch g.IntN(12) {
	case 0:
		w.namespaces[namespace] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: g.labels()}}
		m.setNamespace(namespace, w.namespaces[namespace].Labels)
	case 1:
		if g.IntN(3) == 0 {
			delete(w.namespaces, namespace)
			m.deleteNamespace(namespace)
		}
	case 2, 3:
		w.policies[key] = g.policy(namespace, name)
		m.setPolicy(w.policies[key])
	case 4:
		delete(w.policies, key)
		m.deletePolicy(key)
	case 5:
		delete(w.pods, key)
		m.deletePod(key)
	case 6, 7:
		// Only the status or the labels change.
		if old := w.pods[key]; old != nil {
			changed := old.DeepCopy()
			if g.IntN(2) == 0 {
				changed.Status = g.pod(namespace, name, addresses).Status
			} else {
				changed.Labels = g.labels()
			}
			w.setPod(m, changed)
		}
	default:
		w.setPod(m, g.pod(namespace, name, addresses))
	}
}

func (w *world) setPod(m *model, p *corev1.Pod) {
	w.pods[p.Namespace+"/"+p.Name] = p
	if parsed := podOf(p); parsed != nil {
		m.setPod(parsed)
	} else {
		m.deletePod(p.Namespace + "/" + p.Name)
	}
}
