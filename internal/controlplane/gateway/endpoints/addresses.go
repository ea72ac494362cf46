package endpoints

import "net/netip"

// forwardable tells whether a gateway may connect to an address. Whoever may write
// EndpointSlices chooses the addresses, but the gateway of each node connects to them, from
// the network of the host. So these addresses would mean something else than their author
// can reach himself:
//
//   - Loopback (127.0.0.0/8, ::1) is the node's own: services such as the metrics of the
//     control plane listen there because nothing else can reach them.
//   - Link-local addresses (169.254.0.0/16, fe80::/10) are for one cable. At 169.254.169.254
//     a cloud gives a node its credentials.
//   - Multicast, broadcast and the unspecified address are no endpoint. To Linux, a
//     connection to 0.0.0.0 or :: is one to loopback.
//
// The API server refuses most of them in new EndpointSlices. It does not know those that are
// in its store, and this package does not rely on it. An address of IPv4 in IPv6 counts as
// what it is.
func forwardable(address netip.Addr) bool {
	return address.Unmap().IsGlobalUnicast()
}
