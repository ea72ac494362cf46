package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/knftables"
)

const (
	// bypassTable is the nftables table, one of each family, that keeps connections to servers from being
	// redirected: those of this node, and those of its pods to the API.
	bypassTable = "kedge-servers"
	// bypassPriority is just before the chains of the service proxy, which have the priority of DNAT
	// (-100) in both modes.
	bypassPriority = "-101"
	// ofNode and ofPods are the chains of bypassTable.
	ofNode, ofPods = "output", "prerouting"
	// resolvePatience is how long it may take to find the addresses of a server's name.
	resolvePatience = 5 * time.Second
)

// HasRules tells whether a Proxy has written rules since the host was booted.
func HasRules() bool { return lastMode() != "" }

// PassBy makes connections to servers, HOST:PORT, pass by the rules of an earlier Proxy on this host. Those
// may lead to pods that are gone, which the node learns only from a server. It needs nft in PATH.
func PassBy(ctx context.Context, servers []string) error { return bypass(ctx, resolve(ctx, servers)) }

// passBy does the same for the rules of this Proxy. It leaves out the addresses of this node: the proxy
// must redirect connections of the host to load balancers at these addresses.
func (p *Proxy) passBy(ctx context.Context, servers []netip.AddrPort) {
	others := slices.DeleteFunc(slices.Clone(servers), func(at netip.AddrPort) bool {
		return slices.Contains(p.cfg.NodeIPs, at.Addr()) || slices.Contains(p.cfg.ExternalIPs, at.Addr())
	})
	if err := bypass(ctx, others); err != nil && ctx.Err() == nil {
		// The connections are safe nevertheless: guard hides addresses of servers from the proxier.
		p.log.Debugf("Cannot exempt connections to servers from the rules of Services: %v", err)
	}
}

// bypass writes the tables. In a hook, the first chain that decides the destination of a connection
// decides it for good, also if it leaves the connection as it is (nf_nat_inet_fn in
// net/netfilter/nf_nat_core.c).
func bypass(ctx context.Context, servers []netip.AddrPort) error {
	var errs []error
	for family, is4 := range map[knftables.Family]bool{knftables.IPv4Family: true, knftables.IPv6Family: false} {
		own := slices.DeleteFunc(slices.Clone(servers), func(at netip.AddrPort) bool { return at.Addr().Is4() != is4 })
		nft, err := knftables.New(family, bypassTable, knftables.EmulateDestroy)
		if err == nil {
			tx := nft.NewTransaction()
			tx.Destroy(&knftables.Table{})
			if len(own) > 0 {
				bypassRules(tx, family, own)
			}
			err = nft.Run(ctx, tx)
		}
		if err != nil && len(own) > 0 {
			errs = append(errs, fmt.Errorf("write nftables table %s: %w", bypassTable, err))
		}
	}
	return errors.Join(errs...)
}

// bypassRules adds the table of a family. Connections of pods, and those from outside, pass by only at the
// ports of servers. A server may be named by an address of this host that is in no setting, and NodePorts at
// this address must still work.
func bypassRules(tx *knftables.Transaction, family knftables.Family, servers []netip.AddrPort) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("connections to servers, which no Service redirects")})
	for name, hook := range map[string]knftables.BaseChainHook{ofNode: knftables.OutputHook, ofPods: knftables.PreroutingHook} {
		tx.Add(&knftables.Chain{
			Name: name, Type: knftables.PtrTo(knftables.NATType), Hook: knftables.PtrTo(hook),
			Priority: knftables.PtrTo(knftables.BaseChainPriority(bypassPriority)),
		})
	}
	for _, address := range hosts(servers) {
		tx.Add(&knftables.Rule{Chain: ofNode, Rule: knftables.Concat(string(family), "daddr", address, "dnat to", address)})
	}
	for _, at := range servers {
		tx.Add(&knftables.Rule{Chain: ofPods, Rule: knftables.Concat(string(family), "daddr", at.Addr(), "tcp dport", at.Port(), "dnat to", at.Addr())})
	}
}
