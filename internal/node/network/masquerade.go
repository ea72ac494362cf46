package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"sigs.k8s.io/knftables"
)

// table names an nftables table.
type table struct {
	family knftables.Family
	name   string
}

// masqueradeTable holds the rules below, and the fence.
var masqueradeTable = table{knftables.InetFamily, "kedge-network"}

// postrouting is the chain of masqueradeTable.
const postrouting = "postrouting"

// masquerade gives what this node's pods send out of the cluster the address
// of the node, because nobody out there knows the pods' own. Pods of other
// nodes are masqueraded by theirs.
func masquerade(ctx context.Context, podCIDRs, clusterCIDRs []netip.Prefix) error {
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
			// fully-random: two pods that use the same source port at once
			// would else race for it in the kernel, and one packet be lost.
			Rule: knftables.Concat(family, "saddr", own, family, "daddr != {", strings.Join(inside, ", "), "} masquerade fully-random"),
		})
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write masquerade rules: %w", err)
	}
	return nil
}

// removeTables removes nftables tables, whether they are there or not.
func removeTables(ctx context.Context, tables ...table) error {
	// Without a family and table of its own, so that one transaction does.
	nft, err := knftables.New("", "", knftables.EmulateDestroy)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("remove nftables tables: %w", err)
	}
	if err != nil {
		return nil // this kernel has no nftables, and so no tables
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

// warnOfDroppedForwarding says so if the host drops what is forwarded, as
// Docker makes it do. No rule of kedge's own can help: a packet that one table
// accepts is still dropped by another.
func (n *Network) warnOfDroppedForwarding(ctx context.Context) {
	output, err := exec.CommandContext(ctx, "nft", "--json", "list", "chains").Output()
	if err != nil {
		return // a warning not given is no failure
	}
	for _, chain := range droppingChains(output) {
		var rules []string
		for _, cidr := range n.cfg.Cluster.PodCIDRs() {
			command := "iptables"
			if cidr.Addr().Is6() {
				command = "ip6tables"
			}
			rules = append(rules, fmt.Sprintf("%[1]s -I FORWARD -s %[2]s -j ACCEPT; %[1]s -I FORWARD -d %[2]s -j ACCEPT", command, cidr))
		}
		n.log.Warnf("This host's firewall drops forwarded packets unless told otherwise (nftables chain %s; Docker does this): pods may be cut off; if so, allow them, for example: %s",
			chain, strings.Join(rules, "; "))
	}
}

// droppingChains finds in nft's JSON listing the chains that drop what is
// forwarded unless a rule accepts it.
func droppingChains(listing []byte) []string {
	var list struct {
		Nftables []struct {
			Chain *struct{ Family, Table, Name, Hook, Policy string }
		}
	}
	if err := json.Unmarshal(listing, &list); err != nil {
		return nil
	}
	var dropping []string
	for _, object := range list.Nftables {
		if c := object.Chain; c != nil && c.Hook == string(knftables.ForwardHook) && c.Policy == string(knftables.DropPolicy) {
			dropping = append(dropping, c.Family+" "+c.Table+" "+c.Name)
		}
	}
	return dropping
}
