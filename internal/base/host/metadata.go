package host

import (
	"net/netip"
	"slices"
)

// metadata are the addresses outside of the link-local ranges at which clouds tell a machine
// about itself, and give it its credentials. Some of them answer only root of the machine.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("168.63.129.16/32"),       // Azure: learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16
	netip.MustParsePrefix("100.100.100.200/32"),     // Alibaba Cloud: alibabacloud.com/help/ecs/user-guide/view-instance-metadata
	netip.MustParsePrefix("192.0.0.192/32"),         // Oracle Cloud Infrastructure Classic
	netip.MustParsePrefix("fd00:ec2::/32"),          // AWS: docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google Cloud: cloud.google.com/compute/docs/metadata/querying-metadata
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle Cloud Infrastructure
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
}

// IsMetadata tells whether an address is one at which a cloud tells a machine about itself. Most
// of them are link-local. An IPv4 address may be written as an IPv6 one.
func IsMetadata(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return address.IsLinkLocalUnicast() || slices.ContainsFunc(metadata, func(p netip.Prefix) bool { return p.Contains(address) })
}
