package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
)

func TestSpans(t *testing.T) {
	block := func(cidr string, except ...string) netpolicy.Block {
		b := netpolicy.Block{CIDR: netip.MustParsePrefix(cidr)}
		for _, e := range except {
			b.Except = append(b.Except, netip.MustParsePrefix(e))
		}
		return b
	}
	for _, c := range []struct {
		blocks []netpolicy.Block
		want   string
	}{
		{[]netpolicy.Block{block("10.0.0.7/24")}, "10.0.0.0-10.0.0.255"},
		{[]netpolicy.Block{block("10.0.0.7/32")}, "10.0.0.7"},
		{[]netpolicy.Block{block("0.0.0.0/0")}, "0.0.0.0-255.255.255.255"},
		{[]netpolicy.Block{block("::/0", "fd00::/8")}, "::-fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff fe00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{[]netpolicy.Block{block("10.0.0.0/24", "10.0.0.0/25", "10.0.0.128/25")}, ""},
		{[]netpolicy.Block{block("10.0.0.0/24", "10.0.0.4/30", "10.0.0.5/32", "10.0.0.255/32", "11.0.0.0/8")}, "10.0.0.0-10.0.0.3 10.0.0.8-10.0.0.254"},
		{[]netpolicy.Block{block("10.0.1.0/24"), block("10.0.0.0/24"), block("10.0.1.128/25"), block("10.0.3.0/24"), block("::/128")}, "10.0.0.0-10.0.1.255 10.0.3.0-10.0.3.255 ::"},
	} {
		var spans []span
		for _, b := range c.blocks {
			spans = append(spans, spansOf(b)...)
		}
		var texts []string
		for _, s := range union(spans) {
			texts = append(texts, s.String())
		}
		if got := strings.Join(texts, " "); got != c.want {
			t.Errorf("%v are %q, want %q", c.blocks, got, c.want)
		}
	}
}

// TestTooLarge has blocks that are many, and blocks that are few and become many.
func TestTooLarge(t *testing.T) {
	var many, few netpolicy.Rule
	many.Ports = []netpolicy.Ports{tcp(443, 443)}
	few.Blocks = []netpolicy.Block{{CIDR: netip.MustParsePrefix("0.0.0.0/0")}}
	for i := range 10_000 {
		many.Blocks = append(many.Blocks, netpolicy.Block{CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), 0}), 24)})
	}
	for i := range uint16(1000) {
		few.Ports = append(few.Ports, tcp(1+2*i, 1+2*i))
	}
	if g := compile(groupOf(many)); g.tooLarge || len(g.areas) != 10_000 {
		t.Errorf("10,000 blocks are %d areas, too large: %t", len(g.areas), g.tooLarge)
	}
	if g := compile(groupOf(few)); g.tooLarge || len(g.areas) != 1000 {
		t.Errorf("1,000 ports are %d areas, too large: %t", len(g.areas), g.tooLarge)
	}
	// Each of the many blocks divides the one of the few, which has 1,000 ports.
	many.Blocks = many.Blocks[:1000]
	many.Ports = []netpolicy.Ports{tcp(2, 2)}
	if g := compile(groupOf(many, few)); !g.tooLarge || len(g.areas) > 0 {
		t.Errorf("together they are %d areas, too large: %t", len(g.areas), g.tooLarge)
	}
}

// TestCompile compares random groups with what netpolicy says of them, at addresses and ports where
// something begins or ends. Elements must not overlap, or the kernel refuses them.
func TestCompile(t *testing.T) {
	for seed := range uint64(3000) {
		checkGroup(t, rand.New(rand.NewPCG(seed, 1)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkGroup makes a group, a set of members for it, and connections, and compares.
func checkGroup(t *testing.T, random *rand.Rand) {
	address := func() netip.Addr {
		a := [4]byte{10, 0, 0, byte(random.IntN(32))}
		switch random.IntN(12) {
		case 0:
			a = [4]byte{}
		case 1:
			a = [4]byte{255, 255, 255, 255}
		case 2, 3, 4:
			return netip.MustParseAddr(fmt.Sprintf("fd00::%x", random.IntN(32)))
		}
		return netip.AddrFrom4(a)
	}
	port := func() uint16 {
		return []uint16{0, 1, 79, 80, 81, 82, 443, 65534, 65535}[random.IntN(9)]
	}
	protocols := []uint8{6, 17, 132}
	names := []string{"x", "y", "z"}
	sets := map[string]map[netip.Addr]bool{}
	for _, name := range names {
		sets[name] = map[netip.Addr]bool{}
		for range random.IntN(6) {
			sets[name][address()] = true
		}
	}
	in := func(set string, a netip.Addr) bool { return sets[set][a] }

	from := &netpolicy.Group{}
	for range random.IntN(5) {
		rule := netpolicy.Rule{Anybody: random.IntN(6) == 0}
		if !rule.Anybody {
			for range random.IntN(3) {
				rule.Sets = append(rule.Sets, names[random.IntN(3)])
			}
			for range random.IntN(3) {
				a := address()
				bits := []int{a.BitLen(), a.BitLen() - 1, a.BitLen() - 3, a.BitLen() - 5, 0}[random.IntN(5)]
				block := netpolicy.Block{CIDR: netip.PrefixFrom(a, bits).Masked()}
				for range random.IntN(3) {
					e := address()
					block.Except = append(block.Except, netip.PrefixFrom(e, e.BitLen()-random.IntN(3)).Masked())
				}
				rule.Blocks = append(rule.Blocks, block)
			}
		}
		for range random.IntN(4) {
			a, b := port(), port()
			if random.IntN(2) == 0 {
				b = a
			}
			rule.Ports = append(rule.Ports, netpolicy.Ports{Protocol: protocols[random.IntN(3)], First: min(a, b), Last: max(a, b)})
		}
		from.Rules = append(from.Rules, rule)
	}

	g := compile(from)
	content := map[bool]map[kind][]string{true: {}, false: {}}
	for _, is4 := range []bool{true, false} {
		elements := g.fixed(is4)
		members := map[netip.Addr]bool{}
		for _, set := range sets {
			for a := range set {
				members[a] = true
			}
		}
		for a := range members {
			if a.Is4() == is4 {
				elements = append(elements, g.of(a, in)...)
			}
		}
		for _, e := range elements {
			if !slices.Contains(g.kinds(is4), e.kind) {
				t.Errorf("the chain does not look up %v", e)
			}
			content[is4][e.kind] = append(content[is4][e.kind], e.key)
		}
	}
	for range 200 {
		a, protocol, p := address(), protocols[random.IntN(3)], port()
		allowed := g.everything
		for k, keys := range content[a.Is4()] {
			matches := 0
			for _, key := range keys {
				if matchKey(t, k, key, a, protocol, p) {
					matches++
				}
			}
			if matches > 1 {
				t.Errorf("%d elements of %s match %v %d %d: %v", matches, kinds[k].name, a, protocol, p, keys)
			}
			allowed = allowed || matches > 0
		}
		if want := from.Allows(a, protocol, p, in) != nil; allowed != want {
			t.Errorf("%v %d %d is allowed: %t, want %t\n%+v\n%v", a, protocol, p, allowed, want, from, content)
		}
	}
}

// matchKey tells whether an element matches, as the kernel would.
func matchKey(t *testing.T, k kind, key string, a netip.Addr, protocol uint8, port uint16) bool {
	t.Helper()
	fields := strings.Split(key, " . ")
	if k != kindPorts {
		first, last, _ := strings.Cut(fields[0], "-")
		if last == "" {
			last = first
		}
		if a.Less(netip.MustParseAddr(first)) || netip.MustParseAddr(last).Less(a) {
			return false
		}
		fields = fields[1:]
	}
	if len(fields) == 0 {
		return k == kindPeers || k == kindBlocks
	}
	var first, last uint16
	if n, _ := fmt.Sscanf(fields[1], "%d-%d", &first, &last); n == 1 {
		last = first
	}
	return fields[0] == fmt.Sprint(protocol) && first <= port && port <= last
}
