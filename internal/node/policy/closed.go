package policy

import (
	"context"
	"net/netip"

	"sigs.k8s.io/knftables"
)

func closedOf(placed map[netip.Addr]placement) (closed []netip.Addr) {
	for address, place := range placed {
		if place.closed {
			closed = append(closed, address)
		}
	}
	return closed
}

// addClosed writes the sets of pods that may have no connection, and the chains that look them
// up. They depend on nothing else in the table, so that they can also be added to the table of
// an earlier kedge.
func addClosed(w *writer) {
	for _, is4 := range []bool{true, false} {
		w.Add(&knftables.Set{Name: "closed" + suffix(is4), Type: forFamily(is4, "ADDRESS"), Comment: knftables.PtrTo("pods of which no server has told")})
	}
	baseChain(w, "closed-forward", knftables.ForwardHook, "-11")
	baseChain(w, "closed-input", knftables.InputHook, "-11")
	for _, chain := range []string{"closed-forward", "closed-input"} {
		w.Flush(&knftables.Chain{Name: chain})
		w.Add(&knftables.Rule{Chain: chain, Rule: "ct state untracked " + neighbourDiscovery + " accept"})
		for _, is4 := range []bool{true, false} {
			set := " @closed" + suffix(is4) + " drop"
			rules := []string{"PROTOCOL saddr" + set, "PROTOCOL daddr" + set}
			if chain == "closed-input" {
				// What such a pod answers to its node passes.
				rules = []string{connectionSource + set, "ct state invalid,untracked PROTOCOL saddr" + set}
			}
			for _, rule := range rules {
				w.Add(&knftables.Rule{Chain: chain, Rule: forFamily(is4, rule)})
			}
		}
	}
}

// dropClosed removes what addClosed has written.
func dropClosed(w *writer) {
	for _, chain := range []string{"closed-forward", "closed-input"} {
		w.Flush(&knftables.Chain{Name: chain})
		w.Delete(&knftables.Chain{Name: chain})
	}
	for _, is4 := range []bool{true, false} {
		w.Delete(&knftables.Set{Name: "closed" + suffix(is4)})
	}
}

// close adds addresses to the table that is in the kernel, whatever that is.
func (t *table) close(ctx context.Context, addresses []netip.Addr) error {
	w := t.writer()
	w.Add(&knftables.Table{})
	addClosed(w)
	t.onBridge(w, "closed-forward", true)
	t.onBridge(w, "closed-input", false)
	for _, address := range addresses {
		set := "closed" + suffix(address.Is4())
		w.add[set] = append(w.add[set], address.String())
	}
	w.elements()
	return t.run(ctx, w)
}
