package clusters

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// subnets is how many networks there are in 198.18.0.0/15. RFC 2544 sets this range aside for tests
// within one machine or laboratory, so nothing on the Internet has these addresses.
const subnets = 512

// Range is the range of the networks of all throw-away clusters.
func Range() netip.Prefix { return netip.MustParsePrefix("198.18.0.0/15") }

func subnetPrefix(number int) string { return fmt.Sprintf("198.%d.%d.", 18+number/256, number%256) }

// routes returns the networks that the machine has a route to, except the default route.
func routes() ([]netip.Prefix, error) {
	list, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var networks []netip.Prefix
	for _, route := range list {
		if route.Dst == nil {
			continue
		}
		address, ok := netip.AddrFromSlice(route.Dst.IP)
		ones, _ := route.Dst.Mask.Size()
		if ok && ones > 0 {
			networks = append(networks, netip.PrefixFrom(address.Unmap(), ones))
		}
	}
	return networks, nil
}

// freeSubnet returns the number of a network that no cluster has, and that overlaps with no network of the
// machine.
func freeSubnet(taken map[int]bool, networks []netip.Prefix) (int, error) {
	for number := range subnets {
		prefix := netip.MustParsePrefix(subnetPrefix(number) + "0/24")
		free := !taken[number]
		for _, network := range networks {
			free = free && !network.Overlaps(prefix)
		}
		if free {
			return number, nil
		}
	}
	return 0, fmt.Errorf("no network is free: other clusters or routes of this machine have all of %s. Delete clusters with `kedge cluster delete NAME`, or look at `ip route`", Range())
}
