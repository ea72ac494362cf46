package policycontrol

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// selectorKey defines a selector: the pods that pods selects, in one namespace or in the
// namespaces that namespaces selects.
type selectorKey struct{ namespace, namespaces, pods string }

// selector selects pods as peers. All rules with the same key share it. The pods know the
// selectors that have them, so a selector needs no list of pods.
type selector struct {
	key selectorKey
	// namespaces is nil if the selector is for key.namespace.
	namespaces labels.Selector
	pods       labels.Selector
	// peers are those that are made of this selector, by port and block.
	peers map[peersKey]*peers
}

// selects tells whether the selector is for the pods of a namespace.
func (s *selector) selects(n *namespace) bool {
	if s.namespaces == nil {
		return s.key.namespace == n.name
	}
	return n.known && s.namespaces.Matches(n.labels)
}

// peersKey is what peers with the same selector differ in.
type peersKey struct {
	port  portName // empty for peers on any port
	block string   // empty for peers with any address
}

// peers are the pods of a selector, as one or several sets of addresses. Without a named
// port there is one set, for number 0. With one there is a set for each number that the
// port has on the pods.
type peers struct {
	selector *selector
	key      peersKey
	block    *netpolicy.Block
	// refs counts the rules that use the peers.
	refs int
	// policies have rules with the named port.
	policies map[*policy]struct{}
	sets     map[uint16]*set
}

// set is a set of addresses that nodes know by name. Its addresses are nowhere in memory:
// they are found when a node needs the set, and then only changes are told.
type set struct {
	name   string
	of     *peers
	number uint16
	// pods counts the pods that have the number, if the port is named.
	pods int
	// nodes are those that know the set.
	nodes map[*node]struct{}
}

// numbers returns the sets of q that a pod of its selector belongs to.
func (q *peers) numbers(p *pod) []uint16 {
	if q.key.port == (portName{}) {
		return []uint16{0}
	}
	if q.block != nil && !slices.ContainsFunc(p.addresses, q.block.Contains) {
		return nil
	}
	return p.numbers(q.key.port)
}

// has tells whether q can have an address.
func (q *peers) has(address netip.Addr) bool { return q.block == nil || q.block.Contains(address) }

// newSet makes an empty set, whose name is a hash of its definition.
func newSet(q *peers, number uint16) *set {
	k := q.selector.key
	return &set{
		name: hash("s", fmt.Sprintf("%q %q %q %d %q %q %d", k.namespace, k.namespaces, k.pods, q.key.port.protocol, q.key.port.name, q.key.block, number)),
		of:   q, number: number, nodes: map[*node]struct{}{},
	}
}

// encoding has only characters that every name in nftables may have.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// hash makes a name of 27 characters that begins with a letter. It has 128 bits of the
// hash, so that nobody finds two contents with the same name.
func hash(letter, content string) string {
	sum := sha256.Sum256([]byte(content))
	return letter + encoding.EncodeToString(sum[:16])
}

// peerSelector returns the definition of a peer with selectors, in a policy's namespace.
func peerSelector(inNamespace string, peer networkingv1.NetworkPolicyPeer) (key selectorKey, namespaces, pods labels.Selector) {
	pods = labels.Everything()
	if peer.PodSelector != nil {
		pods = selectorOf(peer.PodSelector)
	}
	key.pods = define(pods)
	if peer.NamespaceSelector == nil {
		key.namespace = inNamespace
		return key, nil, pods
	}
	namespaces = selectorOf(peer.NamespaceSelector)
	key.namespaces = define(namespaces)
	return key, namespaces, pods
}

// nothing is the definition of a selector that selects nothing.
const nothing = "nothing"

// define returns a text that is the same for equal selectors, and only for them. The text
// of upstream is ambiguous about selectors that select nothing.
func define(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return nothing
	}
	return "=" + s.String()
}

// acquire returns the peers with a definition. The caller must release them.
func (m *model) acquire(key selectorKey, namespaces, pods labels.Selector, port portName, block *netpolicy.Block) *peers {
	s := m.selectors[key]
	if s == nil {
		s = &selector{key: key, namespaces: namespaces, pods: pods, peers: map[peersKey]*peers{}}
		m.selectors[key] = s
		m.eachNamespace(s, func(n *namespace) {
			n.selectors[s] = struct{}{}
			for p := range n.pods {
				if s.pods.Matches(p.labels) {
					p.add(s)
				}
			}
		})
	}
	id := peersKey{port: port}
	if block != nil {
		id.block = fmt.Sprint(block.CIDR, block.Except)
	}
	q := s.peers[id]
	if q == nil {
		q = &peers{selector: s, key: id, block: block, policies: map[*policy]struct{}{}, sets: map[uint16]*set{}}
		s.peers[id] = q
		if port == (portName{}) {
			q.sets[0] = newSet(q, 0)
		} else {
			m.eachMember(s, func(p *pod) { m.count(q, p, 1) })
		}
	}
	q.refs++
	return q
}

// release gives peers back.
func (m *model) release(q *peers) {
	if q.refs--; q.refs > 0 {
		return
	}
	s := q.selector
	delete(s.peers, q.key)
	if len(s.peers) > 0 {
		return
	}
	delete(m.selectors, s.key)
	m.eachNamespace(s, func(n *namespace) {
		delete(n.selectors, s)
		for p := range n.pods {
			delete(p.selectors, s)
		}
		m.dropUnused(n)
	})
}

// eachNamespace calls do for the namespaces that a selector is for.
func (m *model) eachNamespace(s *selector, do func(*namespace)) {
	if s.namespaces == nil {
		do(m.namespace(s.key.namespace))
		return
	}
	for _, n := range m.namespaces {
		if s.selects(n) {
			do(n)
		}
	}
}

// eachMember calls do for the pods that a selector selects.
func (m *model) eachMember(s *selector, do func(*pod)) {
	m.eachNamespace(s, func(n *namespace) {
		for p := range n.pods {
			if p.has(s) {
				do(p)
			}
		}
	})
}

// count notes that one pod more or less has the numbers of a named port.
func (m *model) count(q *peers, p *pod, by int) {
	for _, number := range q.numbers(p) {
		s := q.sets[number]
		if s == nil {
			s = newSet(q, number)
			q.sets[number] = s
			m.numbersChanged(q)
		}
		if s.pods += by; s.pods == 0 {
			m.emptied = append(m.emptied, s)
		}
	}
}

// numbersChanged notes that rules with a named port have to be compiled again.
func (m *model) numbersChanged(q *peers) {
	for user := range q.policies {
		m.dirty[user] = struct{}{}
	}
}

// join makes a pod a peer of those who allow the selector s. The pod is not in m.owners
// yet.
func (m *model) join(p *pod, s *selector) { m.tell(p, s, true) }

// leave is the opposite of join. The pod is no longer in m.owners.
func (m *model) leave(p *pod, s *selector) { m.tell(p, s, false) }

func (m *model) tell(p *pod, s *selector, isPeer bool) {
	for _, q := range s.peers {
		if q.key.port != (portName{}) {
			m.count(q, p, map[bool]int{true: 1, false: -1}[isPeer])
		}
		for _, number := range q.numbers(p) {
			set := q.sets[number]
			if len(set.nodes) == 0 {
				continue
			}
			for _, address := range p.addresses {
				if q.has(address) && !m.provided(q, number, address, p) {
					set.tell(address, isPeer)
				}
			}
		}
	}
}

// provided tells whether another pod than except brings an address into a set. Two pods
// have one address for a moment if a new pod gets that of one that is about to go.
func (m *model) provided(q *peers, number uint16, address netip.Addr, except *pod) bool {
	return slices.ContainsFunc(m.owners[address], func(p *pod) bool {
		return p != except && p.has(q.selector) && slices.Contains(q.numbers(p), number)
	})
}

// addresses returns what is in a set, in order.
func (m *model) addresses(s *set) (addresses []netip.Addr) {
	m.eachMember(s.of.selector, func(p *pod) {
		if slices.Contains(s.of.numbers(p), s.number) {
			addresses = append(addresses, slices.DeleteFunc(slices.Clone(p.addresses), func(a netip.Addr) bool { return !s.of.has(a) })...)
		}
	})
	return inOrder(addresses)
}

func inOrder(addresses []netip.Addr) []netip.Addr {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return slices.Compact(addresses)
}
