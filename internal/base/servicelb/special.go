package servicelb

import (
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/host"
)

// Special returns what kind of address this is, such as "a loopback address", if no Service may have
// it. Nobody may give it to a Service, not even an administrator. For other addresses, Special returns
// an empty text.
func Special(address netip.Addr) string {
	address = address.Unmap()
	switch {
	case !address.IsValid() || address.IsUnspecified():
		return "no address of a host"
	case address.IsLoopback():
		return "a loopback address"
	case address.IsLinkLocalUnicast():
		return "a link-local address"
	case address.IsMulticast() || address == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "a multicast address"
	case host.IsMetadata(address):
		return "the metadata service of a cloud"
	}
	return ""
}
