package harness

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// cableInterface is the name of both hosts' ends of a cable.
const cableInterface = "eth1"

// Cable connects two hosts directly, by an interface eth1 on each, in addition to their network. No
// other traffic uses it. It returns the addresses of the hosts' ends. The cable is removed together
// with either host.
func Cable(t T, first, second *Host) (ofFirst, ofSecond netip.Addr) {
	t.Helper()
	ofFirst, ofSecond = netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("172.30.0.2")
	if err := cable(first, second, ofFirst, ofSecond); err != nil {
		t.Fatalf("join %s and %s: %v", first.Name, second.Name, err)
	}
	return ofFirst, ofSecond
}

func cable(first, second *Host, ofFirst, ofSecond netip.Addr) error {
	near, err := netlink.NewHandleAt(first.live.NS(), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := netlink.NewHandleAt(second.live.NS(), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer far.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = cableInterface
	attrs.Flags |= net.FlagUp
	if err := near.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: cableInterface, PeerNamespace: netlink.NsFd(second.live.NS())}); err != nil {
		return fmt.Errorf("make veth: %w", err)
	}
	for address, handle := range map[netip.Addr]*netlink.Handle{ofFirst: near, ofSecond: far} {
		link, err := handle.LinkByName(cableInterface)
		if err != nil {
			return err
		}
		own, err := netlink.ParseAddr(address.String() + "/24")
		if err != nil {
			return err
		}
		if err := handle.AddrAdd(link, own); err != nil {
			return fmt.Errorf("add address %s: %w", address, err)
		}
		if err := handle.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", cableInterface, err)
		}
	}
	return nil
}
