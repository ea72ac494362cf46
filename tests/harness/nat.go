package harness

import (
	"fmt"
	"net/netip"
	"os"
)

// uplink is a router's name for its link to the outer network.
const uplink = "wan"

// natRules are the rules of a router: packets to the outside get the router's address, and only answers
// come in.
const natRules = `table inet nat {
	chain out {
		type nat hook postrouting priority srcnat
		oifname "` + uplink + `" masquerade
	}
	chain in {
		type filter hook forward priority filter
		iifname "` + uplink + `" ct state != { established, related } drop
	}
}
`

// BehindNAT makes a network behind a router on n, as in a home. It is removed when the test ends.
func (n *Network) BehindNAT(t T) *Network {
	t.Helper()
	n.sites++
	n.hosts++
	inner := &Network{t: t, name: n.name, dir: n.dir, outside: n.subnet.address(n.hosts)}
	inner.subnet = subnet{fmt.Sprintf("192.168.%d.", n.sites), fmt.Sprintf("fd32:%x::", n.sites)}
	t.Cleanup(inner.close)
	err := inner.makeBridge()
	if err == nil {
		err = n.attach(n.hosts, inner.ns, uplink)
	}
	if err == nil {
		err = inner.route()
	}
	if err != nil {
		t.Fatalf("make network behind NAT: %v", err)
	}
	return inner
}

// Outside returns the IPv4 address that the hosts of a network behind NAT have outside.
func (n *Network) Outside() netip.Addr { return n.outside }

// route makes the network's namespace a router.
func (n *Network) route() error {
	if err := nft(n.ns, natRules); err != nil {
		return err
	}
	return within(n.ns, func() error {
		for _, file := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
				return fmt.Errorf("make router: %w", err)
			}
		}
		return nil
	})
}
