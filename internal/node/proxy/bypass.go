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
	// bypassTable is the nftables table, one of each family, that keeps this node's own connections
	// to servers from being redirected.
	bypassTable = "kedge-servers"
	// bypassPriority is just before the chains of the service proxy, which have the priority of DNAT
	// (-100) in both modes.
	bypassPriority = "-101"
	// resolvePatience is how long it may take to find the addresses of a server's name.
	resolvePatience = 5 * time.Second
)

// HasRules tells whether a Proxy has written rules since the host was booted.
func HasRules() bool { return lastMode() != "" }

// PassBy makes this node's own connections to servers, HOST:PORT, pass by the rules of an earlier
// Proxy on this host. Those may lead to pods that are gone, which the node learns only from a server.
// It needs nft in PATH.
func PassBy(ctx context.Context, servers []string) error { return bypass(ctx, resolve(ctx, servers)) }

// passBy does the same for the rules of this Proxy. It leaves out the addresses of this node: the proxy
// must redirect connections of the host to load balancers at these addresses.
func (p *Proxy) passBy(ctx context.Context, servers []netip.Addr) {
	others := slices.DeleteFunc(slices.Clone(servers), func(address netip.Addr) bool {
		return slices.Contains(p.cfg.NodeIPs, address) || slices.Contains(p.cfg.ExternalIPs, address)
	})
	if err := bypass(ctx, others); err != nil && ctx.Err() == nil {
		// The connections are safe nevertheless: guard hides addresses of servers from the proxier.
		p.log.Debugf("Cannot exempt connections to servers from the rules of Services: %v", err)
	}
}

// bypass writes the tables. In a hook, the first chain that decides the destination of a connection
// decides it for good, also if it leaves the connection as it is (nf_nat_inet_fn in
// net/netfilter/nf_nat_core.c).
func bypass(ctx context.Context, servers []netip.Addr) error {
	var errs []error
	for family, is4 := range map[knftables.Family]bool{knftables.IPv4Family: true, knftables.IPv6Family: false} {
		own := slices.DeleteFunc(slices.Clone(servers), func(address netip.Addr) bool { return address.Is4() != is4 })
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

// bypassRules adds the table of a family.
func bypassRules(tx *knftables.Transaction, family knftables.Family, servers []netip.Addr) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("connections of this node to servers, which no Service redirects")})
	tx.Add(&knftables.Chain{
		Name: "output", Type: knftables.PtrTo(knftables.NATType), Hook: knftables.PtrTo(knftables.OutputHook),
		Priority: knftables.PtrTo(knftables.BaseChainPriority(bypassPriority)),
	})
	for _, server := range servers {
		tx.Add(&knftables.Rule{Chain: "output", Rule: knftables.Concat(string(family), "daddr", server, "dnat to", server)})
	}
}
