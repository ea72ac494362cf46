package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/kedge-dev/kedge/internal/node/mesh"
)

// table names an nftables table.
type table struct {
	family knftables.Family
	name   string
}

// masqueradeTable holds the masquerading rules and the fence.
var masqueradeTable = table{knftables.InetFamily, "kedge-network"}

// The chains of masqueradeTable.
const (
	postrouting   = "postrouting"
	segmentsChain = "segments"
)

// masquerade writes rules that give packets of this node's pods to addresses outside the cluster the
// address of the node, because other networks do not know the pods' addresses. Each node does this
// for its own pods. With clamp, connections through the mesh have segments that fit into the MTU of the way.
func masquerade(ctx context.Context, podCIDRs, clusterCIDRs []netip.Prefix, clamp bool) error {
	nft, err := knftables.New(masqueradeTable.family, masqueradeTable.name)
	if err != nil {
		return fmt.Errorf("use nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("the network of pods on kedge's node")})
	tx.Add(&knftables.Chain{
		Name:     postrouting,
		Type:     knftables.PtrTo(knftables.NATType),
		Hook:     knftables.PtrTo(knftables.PostroutingHook),
		Priority: knftables.PtrTo(knftables.SNATPriority),
	})
	tx.Flush(&knftables.Chain{Name: postrouting})
	for _, own := range podCIDRs {
		family, multicast := "ip", "224.0.0.0/4"
		if own.Addr().Is6() {
			family, multicast = "ip6", "ff00::/8"
		}
		inside := []string{multicast}
		for _, cluster := range clusterCIDRs {
			if cluster.Addr().Is4() == own.Addr().Is4() {
				inside = append(inside, cluster.String())
			}
		}
		tx.Add(&knftables.Rule{
			Chain: postrouting,
			// fully-random: without it, two pods that use the same source port at the same time
			// would race for it in the kernel, and a packet would be lost.
			Rule: knftables.Concat(family, "saddr", own, family, "daddr != {", strings.Join(inside, ", "), "} masquerade fully-random"),
		})
	}
	segments := &knftables.Chain{
		Name: segmentsChain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(knftables.PostroutingHook),
		Priority: knftables.PtrTo(knftables.ManglePriority),
	}
	tx.Add(segments)
	tx.Flush(&knftables.Chain{Name: segmentsChain})
	if clamp {
		tx.Add(&knftables.Rule{Chain: segmentsChain, Rule: knftables.Concat("oifname", mesh.DeviceName, "tcp flags syn tcp option maxseg size set rt mtu")})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write masquerade rules: %w", err)
	}
	return nil
}

// removeTables removes nftables tables. It returns nil for tables that do not exist.
func removeTables(ctx context.Context, tables ...table) error {
	// Without a default family and table, one transaction can remove all tables.
	nft, err := knftables.New("", "", knftables.EmulateDestroy)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("remove nftables tables: %w", err)
	}
	if err != nil {
		return nil // without nftables in the kernel there are no tables
	}
	tx := nft.NewTransaction()
	for _, t := range tables {
		tx.Add(&knftables.Table{Family: t.family, Name: t.name})
		tx.Delete(&knftables.Table{Family: t.family, Name: t.name})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove nftables tables: %w", err)
	}
	return nil
}
