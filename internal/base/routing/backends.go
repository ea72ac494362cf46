package routing

import (
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/host"
)

// MayBeBackend tells whether an address can be that of an endpoint at all. A gateway connects from the
// network of its node, where these addresses mean something that the author of an endpoint cannot reach
// himself:
//
//   - Loopback (127.0.0.0/8, ::1) is the node's own: services such as the metrics of the control
//     plane listen there because nothing else can reach them.
//   - Link-local addresses (169.254.0.0/16, fe80::/10) are for one cable. At 169.254.169.254 and at
//     further addresses (host.IsMetadata), a cloud gives a node its credentials.
//   - Multicast, broadcast and the unspecified address are no endpoint. To Linux, a connection to
//     0.0.0.0 or :: is one to loopback.
//
// An address of IPv4 in IPv6 counts as what it is.
func MayBeBackend(address netip.Addr) bool {
	address = address.Unmap()
	return address.IsGlobalUnicast() && !host.IsMetadata(address)
}
