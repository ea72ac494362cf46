package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"
)

// tableName is the nft table of the fence, in the family inet.
const tableName = "kedge-dns"

// fence is the packet filter that lets only this node and its pods reach the node's DNS.
//
// It judges by interface, not by address. Another CNI may give pods any address, and a source address
// is easily forged. With every CNI, packets of a local pod come in through a veth, a bridge or an
// Open vSwitch port. Packets from the network come in through a device that has an address of the
// host's. So:
//
//	from lo                                   this node, also through the Service: accept
//	from a device with a foreign address      eth0, a host's br0 or docker0: drop
//	from a veth, bridge or openvswitch port   cni0, cali*, lxc*, antrea-gw0: accept
//	anything else                             flannel.1, wg0, tunnels, VPNs: drop
//
// A foreign address is a routable address outside the pod CIDRs. The device of a default route
// counts as having one. Packets to the cluster DNS's own address, which a proxy has redirected
// here, are judged in the same way, because address translation does not change the interface.
type fence struct {
	nft  knftables.Interface
	pods []netip.Prefix
	// outside are the interfaces in the kernel's rules. It is nil before the first update.
	outside []string
}

// newFence returns a fence. It fails without nft in PATH or without nftables in the kernel.
func newFence(pods []netip.Prefix) (*fence, error) {
	nft, err := knftables.New(knftables.InetFamily, tableName)
	if err != nil {
		return nil, err
	}
	return &fence{nft: nft, pods: pods}, nil
}

// update adapts the rules to the host's present interfaces. It writes to the kernel only if something
// has changed.
func (f *fence) update(ctx context.Context) error {
	outside, err := outsideInterfaces(f.pods)
	if err != nil {
		return err
	}
	if f.outside != nil && slices.Equal(f.outside, outside) {
		return nil
	}
	if err := f.nft.Run(ctx, rules(f.nft, outside)); err != nil {
		return fmt.Errorf("set nft table %s: %w", tableName, err)
	}
	f.outside = outside
	return nil
}

// rules returns a transaction that replaces the whole table.
func rules(nft knftables.Interface, outside []string) *knftables.Transaction {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("kedge: who may ask the node's DNS")})
	tx.Add(&knftables.Set{Name: "outside", Type: "ifname", Comment: knftables.PtrTo("interfaces to other hosts")})
	tx.Flush(&knftables.Set{Name: "outside"})
	for _, name := range outside {
		tx.Add(&knftables.Element{Set: "outside", Key: []string{strconv.Quote(name)}})
	}
	tx.Add(&knftables.Chain{Name: "dns"})
	tx.Flush(&knftables.Chain{Name: "dns"})
	tx.Add(&knftables.Chain{
		Name: "input",
		Type: knftables.PtrTo(knftables.FilterType),
		Hook: knftables.PtrTo(knftables.InputHook),
		// This is before the host's own filter, so the host's rules cannot accept these packets first.
		Priority: knftables.PtrTo(knftables.FilterPriority + "-10"),
	})
	tx.Flush(&knftables.Chain{Name: "input"})
	for _, protocol := range []string{"udp", "tcp"} {
		tx.Add(&knftables.Rule{Chain: "input", Rule: knftables.Concat(protocol, "dport", Port, "jump dns")})
	}
	for _, rule := range []string{
		`iifname "lo" accept`,
		`iifname @outside drop`,
		`meta iifkind { "veth", "bridge", "openvswitch" } accept`,
		`drop`,
	} {
		tx.Add(&knftables.Rule{Chain: "dns", Rule: rule})
	}
	return tx
}

// outsideInterfaces returns the sorted names of the interfaces that lead out of the cluster's pods.
func outsideInterfaces(pods []netip.Prefix) ([]string, error) {
	links, err := consistent(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	addresses, err := consistent(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	outside := []string{}
	for _, address := range addresses {
		ip, ok := netip.AddrFromSlice(address.IP)
		ip = ip.Unmap()
		if !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() ||
			slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			continue
		}
		outside = append(outside, names[address.LinkIndex])
	}
	routes, err := consistent(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if route.Dst != nil {
			if ones, _ := route.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		outside = append(outside, names[route.LinkIndex])
		for _, hop := range route.MultiPath {
			outside = append(outside, names[hop.LinkIndex])
		}
	}
	slices.Sort(outside)
	// An interface that was removed between the two lists has no name. lo is this node, whatever
	// addresses it has.
	return slices.DeleteFunc(slices.Compact(outside), func(name string) bool { return name == "" || name == "lo" }), nil
}

// consistent repeats list until nothing changes while it runs, at most ten times. While many pods
// start, interfaces come and go all the time.
func consistent[T any](list func() ([]T, error)) (result []T, err error) {
	for range 10 {
		if result, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return result, err
}

// remove deletes the table. It returns nil if there is none.
func (f *fence) remove(ctx context.Context) error {
	tx := f.nft.NewTransaction()
	// Deleting fails for a missing table, so it is added first.
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := f.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove nft table %s: %w", tableName, err)
	}
	f.outside = nil
	return nil
}

// Cleanup removes the fence's nft table, which a killed kedge may have left in the kernel. `kedge
// killall` calls it. It returns nil if there is nothing to remove, or no nftables.
func Cleanup(ctx context.Context) error {
	f, err := newFence(nil)
	if err != nil {
		return nil
	}
	return f.remove(ctx)
}
