package harness

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// uplink is a router's name for its link to the outer network.
const uplink = "wan"

// NAT is how a router translates addresses, and which UDP packets it lets in. The names are those of RFC 3489.
type NAT string

// The kinds of NATs. NoUDP is a port-restricted one that drops UDP.
const (
	FullCone          NAT = "full cone"
	AddressRestricted NAT = "address-restricted"
	PortRestricted    NAT = "port-restricted"
	Symmetric         NAT = "symmetric"
	NoUDP             NAT = "no UDP"
)

// MeshPort is the UDP port of the mesh. A NAT of the kinds FullCone and AddressRestricted gives it to the first host behind the NAT.
const MeshPort = 51820

// rules returns the rules of a router: packets to the outside get the router's address, and only answers come in. inner is the
// first host behind the router.
func (n NAT) rules(inner netip.Addr) string {
	masquerade, in, udp := "masquerade", "", "accept"
	toInner := fmt.Sprintf("dnat ip to %s", inner)
	switch n {
	case Symmetric:
		masquerade = "masquerade fully-random"
	case FullCone:
		in = toInner
	case AddressRestricted:
		in = "ip saddr @asked " + toInner
	case NoUDP:
		udp = "drop"
	}
	if in != "" {
		in = fmt.Sprintf(`iifname "%s" udp dport %d %s`, uplink, MeshPort, in)
	}
	return fmt.Sprintf(`table inet nat {
	set asked { type ipv4_addr; flags dynamic; size 1024; }
	chain out {
		type nat hook postrouting priority srcnat
		oifname "%[1]s" %[2]s
	}
	chain in {
		type nat hook prerouting priority dstnat
		%[3]s
	}
	chain asking {
		type filter hook forward priority filter - 1
		oifname "%[1]s" meta l4proto udp add @asked { ip daddr }
	}
	chain through {
		type filter hook forward priority filter
		oifname "%[1]s" meta l4proto udp %[4]s
		ct status dnat accept
		iifname "%[1]s" ct state != { established, related } drop
	}
	chain local {
		type filter hook input priority filter
		iifname "%[1]s" meta l4proto udp ct state != { established, related } drop
	}
}
`, uplink, masquerade, in, udp)
}

// BehindNAT makes a network behind a router on n, as in a home. It is removed when the test ends.
func (n *Network) BehindNAT(t T) *Network {
	t.Helper()
	return n.Behind(t, PortRestricted)
}

// Behind makes a network behind a router with a NAT of a kind.
func (n *Network) Behind(t T, kind NAT) *Network {
	t.Helper()
	outermost := cmp.Or(n.outermost, n)
	outermost.sites++
	n.hosts++
	inner := &Network{t: t, name: n.name, dir: n.dir, outside: n.lan.Subnet.Address(n.hosts), outermost: outermost}
	t.Cleanup(inner.close)
	var err error
	inner.lan, err = hosts.NewNetwork(hosts.Subnet{V4: fmt.Sprintf("192.168.%d.", outermost.sites), V6: fmt.Sprintf("fd32:%x::", outermost.sites)})
	if err == nil {
		err = n.lan.Attach(n.hosts, inner.lan.NS, uplink, true)
	}
	if err == nil {
		err = inner.route(kind)
	}
	if err != nil {
		t.Fatalf("make network behind NAT: %v", err)
	}
	return inner
}

// ForgetConnections makes the router of a network behind NAT forget all connections, as when it restarts.
func (n *Network) ForgetConnections() {
	n.t.Helper()
	err := hosts.Within(n.lan.NS, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if err != nil {
		n.t.Fatalf("make the router forget connections: %v", err)
	}
}

// Move gives the router of a network behind NAT another address on outer, as a provider does.
func (n *Network) Move(outer *Network) {
	n.t.Helper()
	outer.hosts++
	before := n.outside
	n.outside = outer.lan.Subnet.Address(outer.hosts)
	err := hosts.Within(n.lan.NS, func() error {
		link, err := netlink.LinkByName(uplink)
		if err != nil {
			return err
		}
		if err := netlink.AddrDel(link, onLink(before)); err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, onLink(n.outside)); err != nil {
			return err
		}
		// The default route went with the old address.
		return netlink.RouteReplace(&netlink.Route{Dst: everywhere, Gw: outer.lan.Subnet.Address(hosts.Gateway).AsSlice()})
	})
	if err != nil {
		n.t.Fatalf("give the router another address: %v", err)
	}
	n.ForgetConnections()
}

var everywhere = &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}

func onLink(address netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(24, 32)}}
}

// LimitMTU lets the link of a router to the outside have only packets up to a size in bytes. The router says nothing about longer ones
// from inside, which it drops.
func (n *Network) LimitMTU(size int) {
	n.t.Helper()
	rules := fmt.Sprintf("table inet short {\n chain through {\n type filter hook forward priority -5\n meta l4proto udp meta length > %d drop\n}\n}\n", size)
	if err := nft(n.lan.NS, rules); err != nil {
		n.t.Fatalf("limit the MTU: %v", err)
	}
}

// DropUDP lets the router of a network behind NAT drop UDP packets from an address outside and to it, or nothing any more.
func (n *Network) DropUDP(address netip.Addr) {
	n.t.Helper()
	rules := "table inet cut {}\ndelete table inet cut\n"
	if address.IsValid() {
		rules += fmt.Sprintf("table inet cut {\n chain through {\n type filter hook forward priority -5\n meta l4proto udp ip daddr %[1]s drop\n meta l4proto udp ip saddr %[1]s drop\n}\n}\n", address)
	}
	if err := nft(n.lan.NS, rules); err != nil {
		n.t.Fatalf("drop UDP: %v", err)
	}
}

// Outside returns the IPv4 address that the hosts of a network behind NAT have outside.
func (n *Network) Outside() netip.Addr { return n.outside }

// route makes the network's namespace a router.
func (n *Network) route(kind NAT) error {
	if err := nft(n.lan.NS, kind.rules(n.lan.Subnet.Address(1))); err != nil {
		return err
	}
	return hosts.Within(n.lan.NS, func() error {
		for _, file := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
				return fmt.Errorf("make router: %w", err)
			}
		}
		return nil
	})
}
