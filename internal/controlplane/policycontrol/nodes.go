package policycontrol

import (
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// maxPending is how many changes wait for a watcher at most. A watcher that is slower
// gets everything anew.
const maxPending = 20_000

// node is a node with watchers.
type node struct {
	name     string
	watchers map[*watcher]struct{}
	// pods are its pods. groups counts how many of them use a group, and sets how many
	// groups name a set.
	pods   map[string]*pod
	groups map[*group]int
	sets   map[*set]int
}

func newNode(name string, watchers map[*watcher]struct{}) *node {
	return &node{name: name, watchers: watchers, pods: map[string]*pod{}, groups: map[*group]int{}, sets: map[*set]int{}}
}

// watcher is one subscriber to a node's updates.
type watcher struct {
	// signal has a value if there is something to take.
	signal loop.Changes
	// whole says that the next update is everything. Then nothing is pending.
	whole   bool
	pending pending
}

// pending is what has changed since the last update that a watcher took, by name. A group
// or a pod that is gone is nil.
type pending struct {
	sets   map[string]*pendingSet
	groups map[string]*netpolicy.Group
	pods   map[string]*netpolicy.Pod
	size   int
}

// pendingSet is a change of one set.
type pendingSet struct {
	// isNew says that the watcher does not know the set, and gone that it has to forget
	// it. Otherwise the set gets and loses addresses.
	isNew, gone bool
	// addresses has those that come (true) and go (false).
	addresses map[netip.Addr]bool
}

// reset makes the next update everything.
func (w *watcher) reset() { w.whole, w.pending = true, pending{} }

// note calls do with what is pending for each watcher that does not get everything
// anyway.
func (n *node) note(do func(*watcher)) {
	for w := range n.watchers {
		if w.whole {
			continue
		}
		if w.pending.sets == nil {
			w.pending = pending{sets: map[string]*pendingSet{}, groups: map[string]*netpolicy.Group{}, pods: map[string]*netpolicy.Pod{}}
		}
		w.pending.size++
		if do(w); w.pending.size > maxPending {
			w.reset()
		}
	}
}

// wake tells the watchers that have something to take.
func (n *node) wake() {
	for w := range n.watchers {
		if w.whole || w.pending.size > 0 {
			w.signal.Notify()
		}
	}
}

// tellPod tells about a pod of the node. nil means that it is gone.
func (n *node) tellPod(key string, told *netpolicy.Pod) {
	n.note(func(w *watcher) { w.pending.pods[key] = told })
}

// tellGroup tells that a group is new or gone.
func (n *node) tellGroup(g *group, isNew bool) {
	n.note(func(w *watcher) {
		before, is := w.pending.groups[g.name]
		switch {
		case is && (before == nil) == isNew:
			delete(w.pending.groups, g.name) // as before
		case isNew:
			w.pending.groups[g.name] = g.content
		default:
			w.pending.groups[g.name] = nil
		}
	})
}

// tellSet tells that a set is new, with the addresses that content returns, or gone if
// content is nil.
func (n *node) tellSet(s *set, content func() []netip.Addr) {
	var addresses []netip.Addr
	n.note(func(w *watcher) {
		before := w.pending.sets[s.name]
		switch {
		case content == nil && before != nil && before.isNew:
			delete(w.pending.sets, s.name)
		case content == nil:
			w.pending.sets[s.name] = &pendingSet{gone: true}
		case before != nil:
			// The watcher knows the set as it was before it went.
			w.reset()
		default:
			if addresses == nil {
				addresses = content()
			}
			now := &pendingSet{isNew: true, addresses: map[netip.Addr]bool{}}
			for _, address := range addresses {
				now.addresses[address] = true
			}
			w.pending.sets[s.name] = now
			w.pending.size += len(addresses)
		}
	})
}

// tell tells all nodes that know a set that an address comes or goes.
func (s *set) tell(address netip.Addr, comes bool) {
	for n := range s.nodes {
		n.note(func(w *watcher) {
			change := w.pending.sets[s.name]
			if change == nil {
				change = &pendingSet{addresses: map[netip.Addr]bool{}}
				w.pending.sets[s.name] = change
			}
			if was, opposite := change.addresses[address]; opposite && was != comes {
				delete(change.addresses, address)
			} else {
				change.addresses[address] = comes
			}
		})
	}
}

// update returns what is pending as an update, or false if nothing is.
func (p *pending) update(active bool) (netpolicy.Update, bool) {
	u := netpolicy.Update{Active: active, Groups: p.groups, Pods: p.pods}
	for name, change := range p.sets {
		if len(change.addresses) == 0 && !change.isNew && !change.gone {
			continue
		}
		if u.Sets == nil {
			u.Sets = map[string]*netpolicy.Change{}
		}
		u.Sets[name] = change.change()
	}
	return u, len(u.Sets)+len(u.Groups)+len(u.Pods) > 0
}

// change returns nil if the set is gone.
func (p *pendingSet) change() *netpolicy.Change {
	if p.gone {
		return nil
	}
	change := &netpolicy.Change{}
	for address, comes := range p.addresses {
		if comes {
			change.Add = append(change.Add, address)
		} else {
			change.Remove = append(change.Remove, address)
		}
	}
	slices.SortFunc(change.Add, netip.Addr.Compare)
	slices.SortFunc(change.Remove, netip.Addr.Compare)
	return change
}

// watch adds a watcher of a node. Its first update is everything.
func (m *model) watch(name string) *watcher {
	n := m.nodes[name]
	if n == nil {
		n = newNode(name, map[*watcher]struct{}{})
		m.nodes[name] = n
		for key, p := range m.pods {
			if p.node == name {
				n.pods[key] = p
				m.refresh(n, p)
			}
		}
	}
	w := &watcher{signal: loop.NewChanges(), whole: true}
	n.watchers[w] = struct{}{}
	n.wake()
	return w
}

// leaveNode removes a watcher. A node without watchers costs nothing.
func (m *model) leaveNode(name string, w *watcher) {
	n := m.nodes[name]
	if n == nil {
		return
	}
	if delete(n.watchers, w); len(n.watchers) > 0 {
		return
	}
	for _, p := range n.pods {
		m.letGo(n, p.ingress)
		m.letGo(n, p.egress)
		p.ingress, p.egress, p.told = nil, nil, nil
	}
	delete(m.nodes, name)
}

// takeUpdate returns what a watcher has not got yet, or false if that is nothing.
func (m *model) takeUpdate(name string, w *watcher) (netpolicy.Update, bool) {
	if !m.known {
		return netpolicy.Update{}, false
	}
	whole, changes := w.whole, w.pending
	w.whole, w.pending = false, pending{}
	switch {
	case whole:
		return m.whole(m.nodes[name]), true
	case !m.active:
		return netpolicy.Update{}, false
	}
	return changes.update(m.active)
}

// whole returns everything that a node has to know.
func (m *model) whole(n *node) netpolicy.Update {
	u := netpolicy.Update{Whole: true, Active: m.active}
	if !m.active {
		return u
	}
	u.Sets, u.Groups, u.Pods = map[string]*netpolicy.Change{}, map[string]*netpolicy.Group{}, map[string]*netpolicy.Pod{}
	for s := range n.sets {
		u.Sets[s.name] = &netpolicy.Change{}
	}
	for g := range n.groups {
		u.Groups[g.name] = g.content
	}
	for key, p := range n.pods {
		u.Pods[key] = p.told
	}
	if len(n.sets) == 0 {
		return u
	}
	// One look at each pod, instead of one for each set.
	for _, p := range m.pods {
		for s := range p.selectors {
			for _, q := range s.peers {
				for _, number := range q.numbers(p) {
					change := u.Sets[q.sets[number].name]
					if change == nil {
						continue
					}
					for _, address := range p.addresses {
						if q.has(address) {
							change.Add = append(change.Add, address)
						}
					}
				}
			}
		}
	}
	for _, change := range u.Sets {
		change.Add = inOrder(change.Add)
	}
	return u
}
