package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// world is a cluster of the API, about which the naive evaluator decides directly.
type world struct {
	namespaces map[string]*corev1.Namespace
	pods       map[string]*corev1.Pod
	policies   map[string]*networkingv1.NetworkPolicy
}

// allows decides about a connection by the words of the API's documentation, for one pod
// and one direction.
func (w *world) allows(p *corev1.Pod, d direction, peer netip.Addr, protocol corev1.Protocol, port int32) bool {
	isolated := false
	for _, policy := range w.policies {
		if policy.Namespace != p.Namespace || !matches(&policy.Spec.PodSelector, p.Labels) {
			continue
		}
		types := policy.Spec.PolicyTypes
		if len(types) == 0 {
			types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
			if len(policy.Spec.Egress) > 0 {
				types = append(types, networkingv1.PolicyTypeEgress)
			}
		}
		if d == ingress && slices.Contains(types, networkingv1.PolicyTypeIngress) {
			isolated = true
			for _, r := range policy.Spec.Ingress {
				if w.peerFits(policy.Namespace, r.From, peer, nil) && portFits(r.Ports, []*corev1.Pod{p}, protocol, port) {
					return true
				}
			}
		}
		if d == egress && slices.Contains(types, networkingv1.PolicyTypeEgress) {
			isolated = true
			for _, r := range policy.Spec.Egress {
				// A named port is judged on the pods that have the address and fit.
				for _, q := range append(w.at(peer), nil) {
					if w.peerFits(policy.Namespace, r.To, peer, q) && portFits(r.Ports, []*corev1.Pod{q}, protocol, port) {
						return true
					}
				}
			}
		}
	}
	return !isolated
}

// at returns the pods that have an address.
func (w *world) at(address netip.Addr) (pods []*corev1.Pod) {
	for _, p := range w.pods {
		if counts(p) && slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return netip.MustParseAddr(ip.IP) == address }) {
			pods = append(pods, p)
		}
	}
	return pods
}

func counts(p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// peerFits tells whether an address is a peer of a rule. If only is not nil, of the pods
// that have the address only this one counts.
func (w *world) peerFits(namespace string, peers []networkingv1.NetworkPolicyPeer, address netip.Addr, only *corev1.Pod) bool {
	// Nothing is known yet about the pods of a namespace that is not known.
	unknown := only != nil && w.namespaces[only.Namespace] == nil
	if len(peers) == 0 {
		return !unknown
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			if !unknown && netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(address) && !slices.ContainsFunc(peer.IPBlock.Except, func(e string) bool { return netip.MustParsePrefix(e).Contains(address) }) {
				return true
			}
			continue
		}
		for _, p := range w.at(address) {
			if only != nil && p != only {
				continue
			}
			if peer.NamespaceSelector == nil && p.Namespace != namespace {
				continue
			}
			if peer.NamespaceSelector != nil && (w.namespaces[p.Namespace] == nil || !matches(peer.NamespaceSelector, w.namespaces[p.Namespace].Labels)) {
				continue
			}
			if peer.PodSelector == nil || matches(peer.PodSelector, p.Labels) {
				return true
			}
		}
	}
	return false
}

func portFits(ports []networkingv1.NetworkPolicyPort, pods []*corev1.Pod, protocol corev1.Protocol, port int32) bool {
	if len(ports) == 0 {
		return true
	}
	for _, p := range ports {
		want := corev1.ProtocolTCP
		if p.Protocol != nil {
			want = *p.Protocol
		}
		switch {
		case want != protocol:
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.Int && p.EndPort != nil:
			if p.Port.IntVal <= port && port <= *p.EndPort {
				return true
			}
		case p.Port.Type == intstr.Int:
			if p.Port.IntVal == port {
				return true
			}
		default:
			for _, pod := range pods {
				if pod == nil {
					continue
				}
				for _, c := range pod.Spec.Containers {
					for _, named := range c.Ports {
						if named.Name == p.Port.StrVal && named.Protocol == want && named.ContainerPort == port {
							return true
						}
					}
				}
			}
		}
	}
	return false
}

func matches(selector *metav1.LabelSelector, set map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(set))
}

// state is what a node knows after some updates.
type state struct {
	active bool
	sets   map[string]map[netip.Addr]bool
	groups map[string]*netpolicy.Group
	pods   map[string]*netpolicy.Pod
}

// apply takes an update in as a node does, and fails if it does not fit to the former
// ones.
func (s *state) apply(u netpolicy.Update) error {
	if err := u.Check(); err != nil {
		return err
	}
	if u.Whole {
		*s = state{sets: map[string]map[netip.Addr]bool{}, groups: map[string]*netpolicy.Group{}, pods: map[string]*netpolicy.Pod{}}
	}
	s.active = u.Active
	for name, change := range u.Sets {
		if change == nil {
			if s.sets[name] == nil {
				return fmt.Errorf("set %s goes, and is not known", name)
			}
			delete(s.sets, name)
			continue
		}
		if s.sets[name] == nil {
			s.sets[name] = map[netip.Addr]bool{}
		}
		for _, a := range change.Remove {
			if !s.sets[name][a] {
				return fmt.Errorf("set %s loses %s, which it does not have", name, a)
			}
			delete(s.sets[name], a)
		}
		for _, a := range change.Add {
			if s.sets[name][a] {
				return fmt.Errorf("set %s gets %s, which it has", name, a)
			}
			s.sets[name][a] = true
		}
	}
	for name, g := range u.Groups {
		if (s.groups[name] == nil) == (g == nil) {
			return fmt.Errorf("group %s comes or goes twice", name)
		}
		if g == nil {
			delete(s.groups, name)
		} else {
			s.groups[name] = g
		}
	}
	for key, p := range u.Pods {
		if p == nil {
			delete(s.pods, key)
		} else {
			s.pods[key] = p
		}
	}
	// Everything that is named is there, and nothing else.
	named := map[string]bool{}
	for key, p := range s.pods {
		for _, g := range []string{p.Ingress, p.Egress} {
			if named[g] = true; g != "" && s.groups[g] == nil {
				return fmt.Errorf("pod %s has the unknown group %s", key, g)
			}
		}
	}
	sets := map[string]bool{}
	for name, g := range s.groups {
		if !named[name] {
			return fmt.Errorf("no pod has group %s", name)
		}
		for _, r := range g.Rules {
			for _, set := range r.Sets {
				if sets[set] = true; s.sets[set] == nil {
					return fmt.Errorf("group %s has the unknown set %s", name, set)
				}
			}
		}
	}
	for name := range s.sets {
		if !sets[name] {
			return fmt.Errorf("no group has set %s", name)
		}
	}
	return nil
}

func (s *state) allows(key string, d direction, peer netip.Addr, protocol uint8, port uint16) bool {
	p := s.pods[key]
	name := map[direction]string{ingress: p.Ingress, egress: p.Egress}[d]
	return name == "" || s.groups[name].Allows(peer, protocol, port, func(set string, a netip.Addr) bool { return s.sets[set][a] }) != nil
}

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

// TestRandom changes a cluster at random. After each change, a node that has got all
// updates knows the same as one that begins now, and its groups allow the connections
// that the API's words allow.
func TestRandom(t *testing.T) {
	var addresses []string
	for i := range 14 {
		addresses = append(addresses, fmt.Sprintf("10.42.0.%d", i+1), fmt.Sprintf("fd00::%d", i+1))
	}
	probes := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1")}
	for _, a := range addresses {
		probes = append(probes, netip.MustParseAddr(a))
	}
	rounds, steps := 12, 60
	if testing.Short() {
		rounds = 5
	}
	checked := 0
	for seed := range rounds {
		g := generator{rand.New(rand.NewPCG(uint64(seed), 1))}
		w := &world{map[string]*corev1.Namespace{}, map[string]*corev1.Pod{}, map[string]*networkingv1.NetworkPolicy{}}
		m := newModel()
		m.setActive(true)
		// follower takes every update, and sleeper only some of them.
		followers := map[string]*state{"n1": {}, "n2": {}}
		watchers := map[string]*watcher{"n1": m.watch("n1"), "n2": m.watch("n2")}
		sleeping, sleeper := m.watch("n1"), &state{}
		for step := range steps {
			g.step(w, m, addresses)
			consistent(t, m)
			for name, follower := range followers {
				if u, changed := m.takeUpdate(name, watchers[name]); changed {
					if err := follower.apply(u); err != nil {
						t.Fatalf("seed %d step %d node %s: %v", seed, step, name, err)
					}
				}
			}
			if g.IntN(10) == 0 {
				if u, changed := m.takeUpdate("n1", sleeping); changed {
					if err := sleeper.apply(u); err != nil {
						t.Fatalf("seed %d step %d: slow watcher: %v", seed, step, err)
					}
				}
				same(t, sleeper, followers["n1"])
			}
			for name, follower := range followers {
				fresh := m.watch(name)
				u, _ := m.takeUpdate(name, fresh)
				m.leaveNode(name, fresh)
				var whole state
				if err := whole.apply(u); err != nil {
					t.Fatalf("seed %d step %d node %s: whole: %v", seed, step, name, err)
				}
				same(t, follower, &whole)
			}
			if step%5 != 0 {
				continue
			}
			for key, p := range w.pods {
				follower := followers[p.Spec.NodeName]
				if follower == nil {
					continue
				}
				if told := follower.pods[key]; counts(p) != (told != nil) || told != nil && told.UID != string(p.UID) {
					t.Fatalf("seed %d step %d: pod %s is told as %v", seed, step, key, told)
				}
				if !counts(p) {
					continue
				}
				for _, peer := range probes {
					for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
						number, _ := protocolOf(&protocol)
						for port := int32(79); port < 90; port++ {
							for _, d := range []direction{ingress, egress} {
								checked++
								want, got := w.allows(p, d, peer, protocol, port), follower.allows(key, d, peer, number, uint16(port))
								if want != got {
									t.Fatalf("seed %d step %d: %s of %s, peer %s, %s %d: got %t, want %t", seed, step, d, key, peer, protocol, port, got, want)
								}
							}
						}
					}
				}
			}
		}
		// Nothing is left when all is gone.
		for key := range maps.Clone(w.policies) {
			m.deletePolicy(key)
		}
		for key := range maps.Clone(w.pods) {
			m.deletePod(key)
		}
		for _, name := range []string{"one", "two", "three"} {
			m.deleteNamespace(name)
		}
		m.leaveNode("n1", watchers["n1"])
		m.leaveNode("n1", sleeping)
		m.leaveNode("n2", watchers["n2"])
		if left := len(m.namespaces) + len(m.pods) + len(m.policies) + len(m.selectors) + len(m.owners) + len(m.nodes) + len(m.groups) + len(m.named); left > 0 {
			t.Fatalf("seed %d: %d things are left: %+v", seed, left, m)
		}
	}
	if checked < 10_000 {
		t.Errorf("only %d connections were compared", checked)
	}
}

// same compares what two nodes know.
func same(t *testing.T, a, b *state) {
	t.Helper()
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("nodes know different things:\n%+v\n%+v", a, b)
	}
}

// consistent compares the indexes of a model with what they are made from.
func consistent(t *testing.T, m *model) {
	t.Helper()
	for _, p := range m.pods {
		n := m.namespaces[p.namespace]
		for _, s := range m.selectors {
			if want := s.selects(n) && s.pods.Matches(p.labels); want != p.has(s) {
				t.Fatalf("pod %s, selector %v: want %t", p.key, s.key, want)
			}
		}
		for _, policy := range m.policies {
			_, has := find(p.policies, policy.key)
			if want := policy.namespace == p.namespace && policy.pods.Matches(p.labels); want != has {
				t.Fatalf("pod %s, policy %s: want %t", p.key, policy.key, want)
			}
		}
	}
	for _, s := range m.selectors {
		for _, q := range s.peers {
			counts := map[uint16]int{}
			m.eachMember(s, func(p *pod) {
				for _, number := range q.numbers(p) {
					counts[number]++
				}
			})
			for number, set := range q.sets {
				if q.key.port != (portName{}) && (set.pods != counts[number] || set.pods == 0) {
					t.Fatalf("set %v %v %d has %d pods instead of %d", s.key, q.key, number, set.pods, counts[number])
				}
			}
		}
	}
}
