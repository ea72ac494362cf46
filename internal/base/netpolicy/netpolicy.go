// Package netpolicy is what a server tells a node about NetworkPolicies. The server
// (controlplane/policycontrol) works out which connections the pods of a node may have. The node
// (node/policy) enforces it. So a node learns only what concerns its own pods.
package netpolicy

import (
	"cmp"
	"net/netip"
	"slices"
)

// Update changes what a node enforces. A stream of updates begins with one that is Whole.
type Update struct {
	// Whole says that the update replaces everything that the node knew.
	Whole bool `json:"whole,omitempty"`
	// Active is false if the cluster has no policy. Then the node lets every pod start
	// at once.
	Active bool `json:"active"`
	// Sets change sets of addresses, by name. A nil value removes the set.
	Sets map[string]*Change `json:"sets,omitempty"`
	// Groups are new groups, by name. A nil value removes the group. A group never
	// changes: its name is a hash of its content.
	Groups map[string]*Group `json:"groups,omitempty"`
	// Pods are pods of the node with their groups, by NAMESPACE/NAME. A nil value removes
	// the pod.
	Pods map[string]*Pod `json:"pods,omitempty"`
}

// Change adds addresses to a set and removes others. A set that is new begins empty.
type Change struct {
	Add    []netip.Addr `json:"add,omitempty"`
	Remove []netip.Addr `json:"remove,omitempty"`
}

// Pod says what a pod is held to. An empty group means that the pod is not isolated in
// that direction.
type Pod struct {
	// UID is the pod's UID as its kubelet knows it. Of a static pod that is the hash in
	// the annotation of its mirror pod.
	UID     string `json:"uid"`
	Ingress string `json:"ingress,omitempty"`
	Egress  string `json:"egress,omitempty"`
}

// Group is what the pods may do, in one direction, that the same policies select and for
// which named ports have the same numbers.
type Group struct {
	// Policies isolate the pods: NAMESPACE/NAME of each, in order.
	Policies []string `json:"policies"`
	// Rules are the connections that are allowed. All others are forbidden.
	Rules []Rule `json:"rules,omitempty"`
}

// Rule allows connections with any of the peers on any of the ports.
type Rule struct {
	// Policy is NAMESPACE/NAME of the policy that has the rule.
	Policy string `json:"policy"`
	// Anybody says that the rule is for all peers. Sets and Blocks are then empty.
	Anybody bool     `json:"anybody,omitempty"`
	Sets    []string `json:"sets,omitempty"`
	Blocks  []Block  `json:"blocks,omitempty"`
	// Ports are the ports of the pod that is connected to. No ports means all ports and
	// all protocols.
	Ports []Ports `json:"ports,omitempty"`
}

// Block is a range of addresses except some of its parts.
type Block struct {
	CIDR   netip.Prefix   `json:"cidr"`
	Except []netip.Prefix `json:"except,omitempty"`
}

// Ports is a range of ports of one protocol.
type Ports struct {
	// Protocol is the number of the protocol in the IP header: 6 TCP, 17 UDP, 132 SCTP.
	Protocol uint8  `json:"protocol"`
	First    uint16 `json:"first"`
	Last     uint16 `json:"last"`
}

// Union returns ranges that allow the same ports, sorted by protocol and number. Those that
// overlap or touch are joined. It does not change ports.
func Union(ports []Ports) (joined []Ports) {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b Ports) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First))
	})
	for _, p := range ports {
		if n := len(joined); n > 0 && joined[n-1].Protocol == p.Protocol && int(p.First) <= int(joined[n-1].Last)+1 {
			joined[n-1].Last = max(joined[n-1].Last, p.Last)
			continue
		}
		joined = append(joined, p)
	}
	return joined
}

// Contains tells whether an address is in the block.
func (b Block) Contains(address netip.Addr) bool {
	return b.CIDR.Contains(address) && !slices.ContainsFunc(b.Except, func(p netip.Prefix) bool { return p.Contains(address) })
}

// Allows returns the first rule that allows a connection, or nil. peer is the address of
// the other side, port the port that is connected to, and in tells whether a set contains
// an address.
func (g *Group) Allows(peer netip.Addr, protocol uint8, port uint16, in func(set string, address netip.Addr) bool) *Rule {
	for i := range g.Rules {
		if r := &g.Rules[i]; r.forPort(protocol, port) && r.forPeer(peer, in) {
			return r
		}
	}
	return nil
}

func (r *Rule) forPort(protocol uint8, port uint16) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Ports) bool {
		return p.Protocol == protocol && p.First <= port && port <= p.Last
	})
}

func (r *Rule) forPeer(peer netip.Addr, in func(string, netip.Addr) bool) bool {
	return r.Anybody || slices.ContainsFunc(r.Blocks, func(b Block) bool { return b.Contains(peer) }) ||
		slices.ContainsFunc(r.Sets, func(set string) bool { return in(set, peer) })
}

// Sandbox is the network of a pod on the node, as the container runtime has made it.
type Sandbox struct {
	// ID is the runtime's. A pod gets another sandbox if its first one has failed.
	ID string
	// UID is the pod's, as in Pod.
	Namespace, Name, UID string
	Addresses            []netip.Addr
}
