// Follows github.com/coredns/coredns v1.15.0, plugin/pkg/parse/host.go.

package dns

import (
	"net"
	"slices"
	"strings"
)

// isAddress tells whether forward takes to for an address. It follows HostPortOrFile in CoreDNS's
// plugin/pkg/parse/host.go.
//
//upstream:follows github.com/coredns/coredns/plugin/pkg/parse/host.go HostPortOrFile stripZone
func isAddress(to string) bool {
	scheme, host, found := strings.Cut(to, "://")
	if !found {
		host = to
	} else if !slices.Contains([]string{"dns", "tls", "quic", "https"}, scheme) {
		return false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else {
		host = strings.Trim(host, "[]")
	}
	if i := strings.LastIndexByte(host, '%'); i >= 0 {
		host = host[:i]
	}
	return net.ParseIP(host) != nil
}
