package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

// span is a range of addresses of one family.
type span struct{ first, last netip.Addr }

// String returns the span as nft reads it.
func (s span) String() string {
	if s.first == s.last {
		return s.first.String()
	}
	return s.first.String() + "-" + s.last.String()
}

// spanOf returns the addresses of a CIDR.
func spanOf(cidr netip.Prefix) span {
	cidr = cidr.Masked()
	bytes := cidr.Addr().AsSlice()
	for bit := cidr.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return span{cidr.Addr(), last}
}

// spansOf returns the addresses of a block, without its exceptions.
func spansOf(block netpolicy.Block) []span {
	rest := []span{spanOf(block.CIDR)}
	for _, except := range block.Except {
		if except.Addr().Is4() != block.CIDR.Addr().Is4() {
			continue
		}
		var cut []span
		hole := spanOf(except)
		for _, s := range rest {
			if hole.last.Less(s.first) || s.last.Less(hole.first) {
				cut = append(cut, s)
				continue
			}
			if s.first.Less(hole.first) {
				cut = append(cut, span{s.first, hole.first.Prev()})
			}
			if hole.last.Less(s.last) {
				cut = append(cut, span{hole.last.Next(), s.last})
			}
		}
		rest = cut
	}
	return rest
}

// union sorts spans, and joins those that overlap or touch.
func union(spans []span) (joined []span) {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return a.first.Compare(b.first) })
	for _, s := range spans {
		if n := len(joined); n > 0 && joined[n-1].first.Is4() == s.first.Is4() &&
			(!joined[n-1].last.Less(s.first) || joined[n-1].last.Next() == s.first) {
			if joined[n-1].last.Less(s.last) {
				joined[n-1].last = s.last
			}
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// formatPorts returns ports as nft reads them: protocol . ports. The protocol is a number,
// because hosts may have no file with the names of protocols.
func formatPorts(p netpolicy.Ports) string {
	if p.First == p.Last {
		return fmt.Sprintf("%d . %d", p.Protocol, p.First)
	}
	return fmt.Sprintf("%d . %d-%d", p.Protocol, p.First, p.Last)
}

// area is a range of addresses with a range of ports.
type area struct {
	span
	ports netpolicy.Ports
}

// String returns the area as nft reads it.
func (a area) String() string { return a.span.String() + " . " + formatPorts(a.ports) }

// maxAreas is how many areas a group may have. Few areas that overlap can be very many that do not.
const maxAreas = 20_000

// disjoint returns areas that cover the same addresses and ports, but do not overlap. The
// kernel's sets refuse elements that overlap. If the areas are more than maxAreas, before or
// after, it returns none, and true.
//
// It cuts all addresses where an area begins or ends. Between two cuts, every address has
// the same ports.
func disjoint(areas []area) (cut []area, tooMany bool) {
	if len(areas) > maxAreas {
		return nil, true
	}
	areas = slices.Clone(areas)
	slices.SortFunc(areas, func(a, b area) int { return a.first.Compare(b.first) })
	var cuts []netip.Addr
	for _, a := range areas {
		cuts = append(cuts, a.first)
		if next := a.last.Next(); next.IsValid() {
			cuts = append(cuts, next)
		}
	}
	slices.SortFunc(cuts, netip.Addr.Compare)
	cuts = slices.Compact(cuts)

	var pending span // the last piece, which may still grow
	var pendingPorts []netpolicy.Ports
	flush := func() {
		for _, ports := range pendingPorts {
			cut = append(cut, area{pending, ports})
		}
	}
	var open []area // those that have begun and not ended
	next := 0
	for i, first := range cuts {
		last := spanOf(netip.PrefixFrom(first, 0)).last // of the family
		if i+1 < len(cuts) && cuts[i+1].Is4() == first.Is4() {
			last = cuts[i+1].Prev()
		}
		var ports []netpolicy.Ports
		for ; next < len(areas) && !first.Less(areas[next].first); next++ {
			open = append(open, areas[next])
		}
		// IPv4 comes before IPv6, so that no area is open across families.
		open = slices.DeleteFunc(open, func(a area) bool { return a.last.Less(first) })
		for _, a := range open {
			ports = append(ports, a.ports)
		}
		ports = netpolicy.Union(ports)
		if len(pendingPorts) > 0 && slices.Equal(ports, pendingPorts) && pending.last.Next() == first {
			pending.last = last
			continue
		}
		if flush(); len(cut) > maxAreas {
			return nil, true
		}
		pending, pendingPorts = span{first, last}, ports
	}
	flush()
	return cut, false
}
