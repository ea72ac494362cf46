package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// kind is one of the sets that a group's chain looks a packet up in. Together they hold all
// rules of the group.
type kind int

const (
	// kindPorts are ports that anybody may connect to.
	kindPorts kind = iota
	// kindPeers are addresses that have all ports, kindPairs such with single ports, and
	// kindPeerPorts such with ranges of ports. These are of named sets, so they change.
	kindPeers
	kindPairs
	kindPeerPorts
	// kindBlocks are ranges of addresses that have all ports, and kindBlockPorts such with
	// ranges of ports.
	kindBlocks
	kindBlockPorts
)

// kinds describes how each kind is looked up. ADDRESS stands for the type of an address. PEER
// and PORT stand for the expressions that load the peer's address, and protocol and port.
var kinds = [...]struct {
	name, setType, key string
	interval           bool
}{
	kindPorts:      {"ports", "inet_proto . inet_service", "PORT", true},
	kindPeers:      {"peers", "ADDRESS", "PEER", false},
	kindPairs:      {"pairs", "ADDRESS . inet_proto . inet_service", "PEER . PORT", false},
	kindPeerPorts:  {"peer-ports", "ADDRESS . inet_proto . inet_service", "PEER . PORT", true},
	kindBlocks:     {"blocks", "ADDRESS", "PEER", true},
	kindBlockPorts: {"block-ports", "ADDRESS . inet_proto . inet_service", "PEER . PORT", true},
}

// element is an element of one of the sets of a group, as nft reads it.
type element struct {
	kind kind
	key  string
}

// group is a netpolicy.Group in the form that the kernel gets. The kernel needs no order of
// the rules, because all of them allow.
type group struct {
	// policies are the names of the policies, for people.
	policies string
	// everything is true if a rule allows all connections.
	everything bool
	// tooLarge is true if the areas are more than maxAreas. Then the group has none.
	tooLarge bool
	// ports are for anybody. blocks and areas are of both families.
	ports  []netpolicy.Ports
	blocks []span
	areas  []area
	// grants say for each of sets what its members may do.
	sets   []string
	grants []grant
}

// grant says to which ports an address may connect. singles are ports, ranges have more than
// one.
type grant struct {
	all             bool
	singles, ranges []netpolicy.Ports
}

func (g *grant) add(other grant) {
	g.all = g.all || other.all
	g.singles = append(g.singles, other.singles...)
	g.ranges = append(g.ranges, other.ranges...)
}

// compile returns the form of a group that the kernel gets.
func compile(from *netpolicy.Group) *group {
	g := &group{policies: strings.Join(from.Policies, ",")}
	grants := map[string]*grant{}
	for _, rule := range from.Rules {
		own := grant{all: len(rule.Ports) == 0}
		for _, p := range rule.Ports {
			if p.First == p.Last {
				own.singles = append(own.singles, p)
			} else if p.First < p.Last {
				own.ranges = append(own.ranges, p)
			}
		}
		ranges := slices.Concat(own.singles, own.ranges)
		if rule.Anybody {
			g.everything = g.everything || own.all
			g.ports = append(g.ports, ranges...)
		}
		for _, set := range rule.Sets {
			if grants[set] == nil {
				grants[set] = &grant{}
				g.sets = append(g.sets, set)
			}
			grants[set].add(own)
		}
		for _, block := range rule.Blocks {
			for _, s := range spansOf(block) {
				if own.all {
					g.blocks = append(g.blocks, s)
				}
				for _, p := range ranges {
					if len(g.areas) > maxAreas {
						break // disjoint refuses them
					}
					g.areas = append(g.areas, area{s, p})
				}
			}
		}
	}
	g.ports, g.blocks = netpolicy.Union(g.ports), union(g.blocks)
	g.areas, g.tooLarge = disjoint(g.areas)
	for _, set := range g.sets {
		g.grants = append(g.grants, *grants[set])
	}
	return g
}

// kinds returns the sets that the group's chain for a family has.
func (g *group) kinds(is4 bool) (all []kind) {
	has := func(k kind, is bool) {
		if is {
			all = append(all, k)
		}
	}
	has(kindPorts, len(g.ports) > 0)
	has(kindPeers, slices.ContainsFunc(g.grants, func(g grant) bool { return g.all }))
	has(kindPairs, slices.ContainsFunc(g.grants, func(g grant) bool { return len(g.singles) > 0 }))
	has(kindPeerPorts, slices.ContainsFunc(g.grants, func(g grant) bool { return len(g.ranges) > 0 }))
	has(kindBlocks, slices.ContainsFunc(g.blocks, func(s span) bool { return s.first.Is4() == is4 }))
	has(kindBlockPorts, slices.ContainsFunc(g.areas, func(a area) bool { return a.first.Is4() == is4 }))
	return all
}

// fixed returns the elements of a family that never change.
func (g *group) fixed(is4 bool) (all []element) {
	for _, p := range g.ports {
		all = append(all, element{kindPorts, formatPorts(p)})
	}
	for _, s := range g.blocks {
		if s.first.Is4() == is4 {
			all = append(all, element{kindBlocks, s.String()})
		}
	}
	for _, a := range g.areas {
		if a.first.Is4() == is4 {
			all = append(all, element{kindBlockPorts, a.String()})
		}
	}
	return all
}

// of returns the elements that an address has as a member of named sets. in tells whether it
// is in a set. The elements depend on nothing else, so nothing has to count what is in use.
func (g *group) of(address netip.Addr, in func(set string, address netip.Addr) bool) []element {
	var total grant
	for i, set := range g.sets {
		if in(set, address) {
			total.add(g.grants[i])
		}
	}
	text := address.String()
	if total.all {
		return []element{{kindPeers, text}}
	}
	var all []element
	// Ports that are next to each other stay apart: single ports have a faster set.
	for i, p := range total.singles {
		if !slices.Contains(total.singles[:i], p) {
			all = append(all, element{kindPairs, text + " . " + formatPorts(p)})
		}
	}
	for _, p := range netpolicy.Union(total.ranges) {
		all = append(all, element{kindPeerPorts, text + " . " + formatPorts(p)})
	}
	return all
}
