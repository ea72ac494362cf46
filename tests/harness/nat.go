package harness

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
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
	inner := &Network{t: t, name: n.name, dir: n.dir, outside: n.lan.Subnet.Address(n.hosts)}
	t.Cleanup(inner.close)
	var err error
	inner.lan, err = hosts.NewNetwork(hosts.Subnet{V4: fmt.Sprintf("192.168.%d.", n.sites), V6: fmt.Sprintf("fd32:%x::", n.sites)})
	if err == nil {
		err = n.lan.Attach(n.hosts, inner.lan.NS, uplink, true)
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
	if err := nft(n.lan.NS, natRules); err != nil {
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
