package host

import (
	"net/netip"
	"testing"
)

func TestIsMetadata(t *testing.T) {
	for text, want := range map[string]bool{
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "169.254.170.2": true, "fe80::a9fe:a9fe": true, "fe80::1%eth0": true,
		"168.63.129.16": true, "::ffff:168.63.129.16": true, "100.100.100.200": true, "192.0.0.192": true,
		"fd00:ec2::254": true, "fd00:ec2::23": true, "fd20:ce::254": true, "fd00:c1::a9fe:a9fe": true, "fd00:42::42": true,
		"168.63.129.17": false, "100.100.100.100": false, "192.0.2.1": false, "10.42.0.1": false, "fd00:ec3::254": false, "2001:db8::1": false,
	} {
		if got := IsMetadata(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}
