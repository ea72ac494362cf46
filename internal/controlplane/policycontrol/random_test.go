package policycontrol

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

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
		m := newModel(func(string) {})
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
