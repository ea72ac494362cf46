package policy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// tableName is the nft table of this package, in the family inet.
const tableName = "kedge-policy"

// What a packet's connection is judged by: the original direction has the address of who
// connects. The reply direction has the address and port of who answers, after the proxy has
// chosen a pod for a Service. The protocol is also that of the connection, for ICMP errors.
const (
	connectionPort    = "ct original protocol . ct reply proto-src"
	connectionSource  = "ct original PROTOCOL saddr"
	connectionTarget  = "ct reply PROTOCOL saddr"
	beforeServicePort = "ct original protocol . ct original proto-dst"
	// nft takes the port of a connection only after the family and the protocol.
	hasPorts           = "meta nfproto FAMILY ct original protocol { 6, 17, 132 } "
	beforeServicePeer  = "ct original PROTOCOL daddr"
	neighbourDiscovery = "icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-reduction, mld2-listener-report, " +
		"nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }"
)

// elementsPerCommand limits the length of a command. nft needs more time and memory for each
// command than for each element.
const elementsPerCommand = 500

// direction is ingress or egress, seen from a pod.
type direction string

const (
	ingress direction = "ingress"
	egress  direction = "egress"
)

var directions = []direction{egress, ingress}

// suffix is at the end of the names of what the table has once for each family.
func suffix(is4 bool) string {
	if is4 {
		return "4"
	}
	return "6"
}

// forFamily replaces the words of rules and types that depend on the family.
func forFamily(is4 bool, text string) string {
	if is4 {
		return strings.NewReplacer("PROTOCOL", "ip", "FAMILY", "ipv4", "ADDRESS", "ipv4_addr").Replace(text)
	}
	return strings.NewReplacer("PROTOCOL", "ip6", "FAMILY", "ipv6", "ADDRESS", "ipv6_addr").Replace(text)
}

// variant is a group in one direction for one family. It has a chain and sets.
type variant struct {
	direction direction
	is4       bool
	group     string
}

// counter is the name of the counter that both families of a group share.
func (v variant) counter() string { return string(v.direction) + "-" + v.group }

func (v variant) chain() string { return string(v.direction) + suffix(v.is4) + "-" + v.group }

func (v variant) set(k kind) string { return v.chain() + "-" + kinds[k].name }

// byService is the chain for connections to the cluster's DNS.
func (v variant) byService() string { return v.chain() + "-dns" }

// placement says what holds for an address of a local pod.
type placement struct {
	// closed forbids everything, except what the node itself sends.
	closed bool
	// ingress and egress are groups. An empty name isolates nothing.
	ingress, egress string
	// self are the pod's addresses of the same family, separated by blanks. A pod always
	// reaches itself.
	self string
}

func (p placement) group(d direction) string {
	if d == ingress {
		return p.ingress
	}
	return p.egress
}

// variantsOf returns the variants that addresses need.
func variantsOf(placed map[netip.Addr]placement, groups map[string]*group) map[variant]*group {
	all := map[variant]*group{}
	for address, place := range placed {
		for _, d := range directions {
			if group := place.group(d); group != "" {
				all[variant{d, address.Is4(), group}] = groups[group]
			}
		}
	}
	return all
}

// table writes the nft table.
type table struct {
	nft knftables.Interface
	// bridge is Config.Bridge, and dns is Config.ClusterDNS.
	bridge string
	dns    []netip.Addr
}

// writer collects commands of a transaction, and elements by set.
type writer struct {
	*knftables.Transaction
	add, remove map[string][]string
}

func (t *table) writer() *writer {
	return &writer{t.nft.NewTransaction(), map[string][]string{}, map[string][]string{}}
}

// elements writes the collected elements. What is removed comes first, because sets refuse
// elements that overlap.
//
//upstream:relies-on sigs.k8s.io/knftables/objects.go Element.writeOperation
func (w *writer) elements() {
	for _, set := range slices.Sorted(maps.Keys(w.remove)) {
		for keys := range slices.Chunk(w.remove[set], elementsPerCommand) {
			w.Delete(&knftables.Element{Set: set, Key: []string{strings.Join(keys, ", ")}})
		}
	}
	for _, set := range slices.Sorted(maps.Keys(w.add)) {
		for keys := range slices.Chunk(w.add[set], elementsPerCommand) {
			w.Add(&knftables.Element{Set: set, Key: []string{strings.Join(keys, ", ")}})
		}
	}
}

// exchange collects the elements that differ before and now.
func (w *writer) exchange(v variant, before, now []element) {
	for _, e := range before {
		if !slices.Contains(now, e) {
			w.remove[v.set(e.kind)] = append(w.remove[v.set(e.kind)], e.key)
		}
	}
	for _, e := range now {
		if !slices.Contains(before, e) {
			w.add[v.set(e.kind)] = append(w.add[v.set(e.kind)], e.key)
		}
	}
}

// replace writes the whole table, or removes it if nothing is to be enforced.
func (t *table) replace(ctx context.Context, placed map[netip.Addr]placement, variants map[variant]*group, members func(*group, bool) []element) error {
	w := t.writer()
	// Deleting fails for a missing table, so it is added first.
	w.Add(&knftables.Table{})
	w.Delete(&knftables.Table{})
	if len(placed) > 0 {
		w.Add(&knftables.Table{Comment: knftables.PtrTo("kedge: NetworkPolicies")})
		t.base(w)
		for v, g := range variants {
			t.addVariant(w, v, g, members)
		}
		t.place(w, nil, placed)
		w.elements()
	}
	return t.run(ctx, w)
}

func (t *table) run(ctx context.Context, w *writer) error {
	if w.NumOperations() == 0 {
		return nil
	}
	if err := t.nft.Run(ctx, w.Transaction); err != nil {
		return fmt.Errorf("set nft table %s: %w", tableName, err)
	}
	return nil
}

// base writes what does not depend on groups.
func (t *table) base(w *writer) {
	families := []bool{true, false}
	for _, is4 := range families {
		for _, d := range directions {
			w.Add(&knftables.Map{Name: string(d) + suffix(is4), Type: forFamily(is4, "ADDRESS : verdict"), Comment: knftables.PtrTo("pods that are isolated")})
		}
		w.Add(&knftables.Set{Name: "self" + suffix(is4), Type: forFamily(is4, "ADDRESS . ADDRESS"), Comment: knftables.PtrTo("isolated pods, each with itself")})
	}
	w.Add(&knftables.Chain{Name: "strays"})
	baseChain(w, "forward", knftables.ForwardHook, "-10")
	baseChain(w, "input", knftables.InputHook, "-10")
	rule := func(chain, text string) { w.Add(&knftables.Rule{Chain: chain, Rule: text}) }
	for _, is4 := range families {
		self := "self" + suffix(is4)
		for _, address := range []string{"saddr", "daddr"} {
			// The set has each address with itself.
			rule("strays", forFamily(is4, fmt.Sprintf("PROTOCOL %[1]s . PROTOCOL %[1]s @%[2]s drop", address, self)))
		}
	}
	for _, chain := range []string{"forward", "input"} {
		// The kernel does not track these packets, without which there is no IPv6.
		rule(chain, "ct state untracked "+neighbourDiscovery+" accept")
		t.onBridge(w, chain, chain == "forward")
		rule(chain, "ct state invalid,untracked jump strays")
		for _, is4 := range families {
			rule(chain, forFamily(is4, connectionSource+" vmap @"+string(egress)+suffix(is4)))
			if chain == "forward" {
				rule(chain, forFamily(is4, connectionTarget+" vmap @"+string(ingress)+suffix(is4)))
			}
		}
	}
}

// onBridge drops what the pods of kedge's own network may send beside their addresses.
func (t *table) onBridge(w *writer, chain string, forward bool) {
	if t.bridge == "" {
		return
	}
	what := []string{"ip6 saddr fe80::/10"}
	if forward {
		what = append(what, "ip6 daddr fe80::/10", "meta pkttype { broadcast, multicast }")
	}
	for _, packets := range what {
		w.Add(&knftables.Rule{Chain: chain, Rule: fmt.Sprintf("iifname %q %s drop", t.bridge, packets)})
	}
}

func baseChain(w *writer, name string, hook knftables.BaseChainHook, offset string) {
	w.Add(&knftables.Chain{
		Name: name, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook),
		// This is before the host's own filter, so packets that are dropped cost no more.
		Priority: knftables.PtrTo(knftables.FilterPriority + knftables.BaseChainPriority(offset)),
	})
}

// addVariant writes a group's chain and sets.
func (t *table) addVariant(w *writer, v variant, g *group, members func(*group, bool) []element) {
	w.Add(&knftables.Counter{Name: v.counter()})
	used := g.kinds(v.is4)
	for _, k := range used {
		set := &knftables.Set{Name: v.set(k), Type: forFamily(v.is4, kinds[k].setType)}
		if kinds[k].interval {
			set.Flags = []knftables.SetFlag{knftables.IntervalFlag}
		}
		w.Add(set)
	}
	for _, e := range slices.Concat(g.fixed(v.is4), members(g, v.is4)) {
		w.add[v.set(e.kind)] = append(w.add[v.set(e.kind)], e.key)
	}
	w.Add(&knftables.Chain{Name: v.chain()})
	peer := connectionSource
	if v.direction == egress {
		peer = connectionTarget
		if dns := t.dnsOf(v.is4); dns != "" {
			w.Add(&knftables.Chain{Name: v.byService()})
			w.Add(&knftables.Rule{Chain: v.chain(), Rule: forFamily(v.is4, hasPorts+"ct original proto-dst 53 "+beforeServicePeer+" { "+dns+" } goto "+v.byService())})
			t.lookUp(w, v, v.byService(), used, beforeServicePeer, beforeServicePort, g)
		}
	}
	t.lookUp(w, v, v.chain(), used, peer, connectionPort, g)
}

// lookUp writes the rules of a chain that returns if a connection with peer is allowed.
func (t *table) lookUp(w *writer, v variant, chain string, used []kind, peer, port string, g *group) {
	for _, k := range used {
		key := strings.ReplaceAll(kinds[k].key, "PEER", peer)
		if strings.Contains(key, "PORT") {
			key = hasPorts + strings.ReplaceAll(key, "PORT", port)
		}
		w.Add(&knftables.Rule{Chain: chain, Rule: forFamily(v.is4, key+" @"+v.set(k)+" return")})
	}
	w.Add(&knftables.Rule{Chain: chain, Rule: forFamily(v.is4, connectionSource+" . "+connectionTarget+" @self"+suffix(v.is4)+" return")})
	w.Add(&knftables.Rule{Chain: chain, Rule: "counter name " + v.counter() + " drop", Comment: comment(g.policies)})
}

// comment returns the beginning of a text, as much as nft takes.
func comment(text string) *string {
	if len(text) > knftables.CommentLengthMax-1 {
		text = text[:knftables.CommentLengthMax-4] + "..."
	}
	return &text
}

// dnsOf returns the addresses of the cluster's DNS of a family, as the elements of a set.
func (t *table) dnsOf(is4 bool) string {
	var all []string
	for _, address := range t.dns {
		if address.Is4() == is4 {
			all = append(all, address.String())
		}
	}
	return strings.Join(all, ", ")
}

// place writes how the placements of addresses have changed.
func (t *table) place(w *writer, before, now map[netip.Addr]placement) {
	wasClosed, isClosed := closedOf(before), closedOf(now)
	if len(wasClosed) > 0 && len(isClosed) == 0 {
		dropClosed(w)
	} else if len(isClosed) > 0 {
		if len(wasClosed) == 0 {
			addClosed(w)
		}
		for _, address := range wasClosed {
			if !now[address].closed {
				w.remove["closed"+suffix(address.Is4())] = append(w.remove["closed"+suffix(address.Is4())], address.String())
			}
		}
		for _, address := range isClosed {
			if !before[address].closed {
				w.add["closed"+suffix(address.Is4())] = append(w.add["closed"+suffix(address.Is4())], address.String())
			}
		}
	}
	addresses := slices.SortedFunc(maps.Keys(before), netip.Addr.Compare)
	for address := range now {
		if _, both := before[address]; !both {
			addresses = append(addresses, address)
		}
	}
	for _, address := range addresses {
		old, place, key := before[address], now[address], []string{address.String()}
		for _, d := range directions {
			if old.group(d) == place.group(d) {
				continue
			}
			name := string(d) + suffix(address.Is4())
			if old.group(d) != "" {
				w.Delete(&knftables.Element{Map: name, Key: key})
			}
			if group := place.group(d); group != "" {
				w.Add(&knftables.Element{Map: name, Key: key, Value: []string{"jump " + variant{d, address.Is4(), group}.chain()}})
			}
		}
		if old.self != place.self {
			name := "self" + suffix(address.Is4())
			for _, other := range strings.Fields(old.self) {
				w.remove[name] = append(w.remove[name], key[0]+" . "+other)
			}
			for _, other := range strings.Fields(place.self) {
				w.add[name] = append(w.add[name], key[0]+" . "+other)
			}
		}
	}
}

// removeVariant removes a group's chain and sets. The counter stays.
func (t *table) removeVariant(w *writer, v variant, g *group) {
	w.Flush(&knftables.Chain{Name: v.chain()})
	w.Delete(&knftables.Chain{Name: v.chain()})
	if v.direction == egress && t.dnsOf(v.is4) != "" {
		w.Flush(&knftables.Chain{Name: v.byService()})
		w.Delete(&knftables.Chain{Name: v.byService()})
	}
	for _, k := range g.kinds(v.is4) {
		w.Delete(&knftables.Set{Name: v.set(k)})
	}
}

// remove deletes the table. It returns nil if there is none.
func remove(ctx context.Context, nft knftables.Interface) error {
	return (&table{nft: nft}).replace(ctx, nil, nil, nil)
}
