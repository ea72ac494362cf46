package routing

import (
	"net/netip"
	"slices"
)

// metadata are addresses at which clouds tell a machine what it is, and give it credentials, beside
// 169.254.0.0/16: AWS, Azure, Alibaba Cloud and Google Cloud.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),
	netip.MustParseAddr("168.63.129.16"),
	netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("fd20:ce::254"),
}

// MayBeBackend tells whether an address can be that of an endpoint at all. A gateway connects from the
// network of its node, where these addresses mean something that the author of an endpoint cannot reach
// himself:
//
//   - Loopback (127.0.0.0/8, ::1) is the node's own: services such as the metrics of the control
//     plane listen there because nothing else can reach them.
//   - Link-local addresses (169.254.0.0/16, fe80::/10) are for one cable. At 169.254.169.254 and at
//     the addresses of metadata, a cloud gives a node its credentials.
//   - Multicast, broadcast and the unspecified address are no endpoint. To Linux, a connection to
//     0.0.0.0 or :: is one to loopback.
//
// An address of IPv4 in IPv6 counts as what it is.
func MayBeBackend(address netip.Addr) bool {
	address = address.Unmap()
	return address.IsGlobalUnicast() && !slices.Contains(metadata, address)
}
