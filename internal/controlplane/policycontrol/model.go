package policycontrol

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
)

// model has the policies, and the pods and namespaces if there are policies. Each method
// that changes it tells the watchers what that means for their nodes. The caller of a
// method holds the lock of the Compiler.
type model struct {
	namespaces map[string]*namespace
	pods       map[string]*pod
	policies   map[string]*policy
	selectors  map[selectorKey]*selector
	// owners are the pods that have an address.
	owners map[netip.Addr][]*pod
	// nodes are those that are watched.
	nodes map[string]*node
	// groups are those that some node knows, by what they are compiled from. named has
	// them by name.
	groups, named map[string]*group
	serial        uint64
	// warn logs a message.
	warn func(text string)
	// known says that nodes can be told what holds now. active says that there are
	// policies, and that pods and namespaces are known.
	known, active bool

	// The fields below are empty between changes. dirty are policies to be compiled
	// again, and emptied are sets that may have no pods any more.
	dirty   map[*policy]struct{}
	emptied []*set
}

// namespace has what is in it. Policies and pods may be known before the namespace.
type namespace struct {
	name   string
	known  bool
	labels labels.Set
	pods   map[*pod]struct{}
	// policies are ordered by their keys.
	policies []*policy
	// selectors are those that are for the pods of this namespace.
	selectors map[*selector]struct{}
}

func newModel(warn func(text string)) *model {
	return &model{
		warn:       warn,
		namespaces: map[string]*namespace{},
		pods:       map[string]*pod{},
		policies:   map[string]*policy{},
		selectors:  map[selectorKey]*selector{},
		owners:     map[netip.Addr][]*pod{},
		nodes:      map[string]*node{},
		groups:     map[string]*group{},
		named:      map[string]*group{},
		dirty:      map[*policy]struct{}{},
	}
}

// namespace returns a namespace, which it makes if the name is new. Selectors that select
// namespaces ignore it until setNamespace.
func (m *model) namespace(name string) *namespace {
	n := m.namespaces[name]
	if n == nil {
		n = &namespace{name: name, pods: map[*pod]struct{}{}, selectors: map[*selector]struct{}{}}
		m.namespaces[name] = n
	}
	return n
}

// dropUnused forgets a namespace that is gone and has nothing.
func (m *model) dropUnused(n *namespace) {
	if !n.known && len(n.pods)+len(n.policies)+len(n.selectors) == 0 {
		delete(m.namespaces, n.name)
	}
}

// setNamespace takes in a namespace that is new or has other labels.
func (m *model) setNamespace(name string, labels labels.Set) {
	n := m.namespace(name)
	if n.known && maps.Equal(n.labels, labels) {
		return
	}
	n.known, n.labels = true, labels
	m.moved(n)
}

// deleteNamespace takes a namespace out.
func (m *model) deleteNamespace(name string) {
	if n := m.namespaces[name]; n != nil {
		n.known, n.labels = false, nil
		m.moved(n)
		m.dropUnused(n)
	}
}

// moved compares a namespace with all selectors of namespaces.
func (m *model) moved(n *namespace) {
	for _, s := range m.selectors {
		if s.namespaces == nil {
			continue
		}
		_, was := n.selectors[s]
		is := s.selects(n)
		if was == is {
			continue
		}
		if is {
			n.selectors[s] = struct{}{}
		} else {
			delete(n.selectors, s)
		}
		for p := range n.pods {
			switch {
			case !s.pods.Matches(p.labels):
			case is:
				p.add(s)
				m.join(p, s)
			default:
				delete(p.selectors, s)
				m.leave(p, s)
			}
		}
	}
	m.commit()
}

// setPod takes in a pod that is new or has changed.
func (m *model) setPod(now *pod) {
	before := m.pods[now.key]
	if before != nil && before.same(now) {
		return
	}
	n := m.namespace(now.namespace)
	if before != nil && maps.Equal(before.labels, now.labels) {
		now.selectors, now.policies = before.selectors, before.policies
	} else {
		for s := range n.selectors {
			if s.pods.Matches(now.labels) {
				now.add(s)
			}
		}
		for _, policy := range n.policies {
			if policy.pods.Matches(now.labels) {
				now.policies = append(now.policies, policy)
			}
		}
	}
	samePeer := before != nil && before.samePeer(now)
	if before != nil {
		m.takeOut(before)
		if !samePeer {
			m.each(before, m.leave)
		}
	}
	if !samePeer {
		m.each(now, m.join)
	}
	m.pods[now.key] = now
	n.pods[now] = struct{}{}
	for _, address := range now.addresses {
		m.owners[address] = append(m.owners[address], now)
	}
	if before != nil && before.node == now.node {
		now.ingress, now.egress, now.told = before.ingress, before.egress, before.told
	} else if before != nil {
		m.withdraw(before)
	}
	if watched := m.nodes[now.node]; watched != nil {
		watched.pods[now.key] = now
		m.refresh(watched, now)
	}
	m.commit()
}

// deletePod takes a pod out.
func (m *model) deletePod(key string) {
	p := m.pods[key]
	if p == nil {
		return
	}
	m.takeOut(p)
	m.each(p, m.leave)
	m.withdraw(p)
	if n := m.namespaces[p.namespace]; n != nil {
		m.dropUnused(n)
	}
	m.commit()
}

// each calls do with a pod and all its selectors.
func (m *model) each(p *pod, do func(*pod, *selector)) {
	for s := range p.selectors {
		do(p, s)
	}
}

// takeOut takes a pod out of the indexes.
func (m *model) takeOut(p *pod) {
	delete(m.pods, p.key)
	delete(m.namespaces[p.namespace].pods, p)
	for _, address := range p.addresses {
		if rest := slices.DeleteFunc(m.owners[address], func(owner *pod) bool { return owner == p }); len(rest) > 0 {
			m.owners[address] = rest
		} else {
			delete(m.owners, address)
		}
	}
}

// withdraw takes a pod away from its node.
func (m *model) withdraw(p *pod) {
	watched := m.nodes[p.node]
	if watched == nil {
		return
	}
	delete(watched.pods, p.key)
	watched.tellPod(p.key, nil)
	m.letGo(watched, p.ingress)
	m.letGo(watched, p.egress)
}

// setPolicy takes in a policy that is new or has changed. It returns nil if it has not.
func (m *model) setPolicy(object *networkingv1.NetworkPolicy) *policy {
	key := object.Namespace + "/" + object.Name
	before := m.policies[key]
	if before != nil && equality.Semantic.DeepEqual(before.spec, &object.Spec) {
		return nil
	}
	now := m.parse(key, object)
	m.policies[key] = now
	n := m.namespace(object.Namespace)
	at, found := find(n.policies, key)
	if found {
		n.policies[at] = now
	} else {
		n.policies = slices.Insert(n.policies, at, now)
	}
	m.replace(n, before, now)
	return now
}

// deletePolicy takes a policy out.
func (m *model) deletePolicy(key string) {
	before := m.policies[key]
	if before == nil {
		return
	}
	delete(m.policies, key)
	n := m.namespace(before.namespace)
	if at, found := find(n.policies, key); found {
		n.policies = slices.Delete(n.policies, at, at+1)
	}
	m.replace(n, before, nil)
	m.dropUnused(n)
}

// replace gives the pods of a namespace a policy instead of another. Either may be nil.
// What both use stays: the former is released last.
func (m *model) replace(n *namespace, before, now *policy) {
	for p := range n.pods {
		at, had := 0, false
		if before != nil {
			at, had = find(p.policies, before.key)
		}
		has := now != nil && now.pods.Matches(p.labels)
		if !had && !has {
			continue
		}
		// A slice may be that of a former state of the pod, which nobody reads.
		switch {
		case had && has:
			p.policies[at] = now
		case had:
			p.policies = slices.Delete(p.policies, at, at+1)
		default:
			at, _ = find(p.policies, now.key)
			p.policies = slices.Insert(p.policies, at, now)
		}
		if watched := m.nodes[p.node]; watched != nil {
			m.refresh(watched, p)
		}
	}
	if before != nil {
		for _, q := range before.uses {
			delete(q.policies, before)
			m.release(q)
		}
	}
	m.commit()
}

// find looks for a policy in an ordered list.
func find(list []*policy, key string) (int, bool) {
	return slices.BinarySearchFunc(list, key, func(p *policy, key string) int { return strings.Compare(p.key, key) })
}

// commit ends a change: it compiles policies again for which the numbers of named ports
// have changed, and wakes the watchers.
func (m *model) commit() {
	for _, s := range m.emptied {
		if s.pods == 0 && s.of.sets[s.number] == s {
			delete(s.of.sets, s.number)
			m.numbersChanged(s.of)
		}
	}
	m.emptied = m.emptied[:0]
	for policy := range m.dirty {
		if m.policies[policy.key] != policy {
			continue
		}
		policy.serial = m.nextSerial()
		for p := range m.namespace(policy.namespace).pods {
			if _, has := find(p.policies, policy.key); has && m.nodes[p.node] != nil {
				m.refresh(m.nodes[p.node], p)
			}
		}
	}
	clear(m.dirty)
	for _, n := range m.nodes {
		n.wake()
	}
}

func (m *model) nextSerial() uint64 {
	m.serial++
	return m.serial
}

// setActive says that the model is complete from now on, with policies or without.
func (m *model) setActive(active bool) {
	m.known, m.active = true, active
	for _, n := range m.nodes {
		for w := range n.watchers {
			w.reset()
		}
		n.wake()
	}
}

// forget drops what is known about pods and namespaces. There are no policies.
func (m *model) forget() {
	m.namespaces, m.pods, m.owners = map[string]*namespace{}, map[string]*pod{}, map[netip.Addr][]*pod{}
	m.groups, m.named = map[string]*group{}, map[string]*group{}
	for name, n := range m.nodes {
		m.nodes[name] = newNode(name, n.watchers)
	}
}
