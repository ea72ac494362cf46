package routing

import (
	"net/netip"
	"testing"
)

// TestMayBeBackend has addresses of each kind that a gateway connects to or not. The metadata addresses
// of clouds are those of package host.
func TestMayBeBackend(t *testing.T) {
	for text, want := range map[string]bool{
		"10.42.0.5": true, "::ffff:10.42.0.5": true, "203.0.113.7": true, "fd42::5": true, "2001:db8::1": true, "168.63.129.17": true,
		"127.0.0.1": false, "::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "::": false,
		"224.0.0.1": false, "255.255.255.255": false, "ff02::1": false, "fe80::1": false,
		"169.254.169.254": false, "168.63.129.16": false, "::ffff:168.63.129.16": false, "100.100.100.200": false, "192.0.0.192": false,
		"fd00:ec2::254": false, "fd00:ec2::23": false, "fd20:ce::254": false, "fd00:c1::a9fe:a9fe": false, "fd00:42::42": false,
	} {
		if got := MayBeBackend(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}
