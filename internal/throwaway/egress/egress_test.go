package egress

import (
	"errors"
	"net/netip"
	"testing"
)

// TestDialRefuses wants nodes to reach nothing that trusts the users of the machine, no metadata service of a
// cloud, and no other cluster.
func TestDialRefuses(t *testing.T) {
	e := &Egress{cfg: Config{
		Refused: netip.MustParsePrefix("198.18.0.0/15"),
		Own:     func() (map[netip.Addr]bool, error) { return nil, errors.New("asked") },
	}}
	for target, refused := range map[string]bool{
		"127.0.0.1:22":       true,
		"127.9.9.9:22":       true,
		"0.0.0.0:22":         true,
		"224.0.0.1:22":       true,
		"255.255.255.255:22": true,
		"198.18.7.1:6443":    true,
		"198.19.255.1:6443":  true,
		"198.20.0.1:443":     false,
		"192.0.2.1:443":      false,
		"169.254.169.254:80": true,
		"168.63.129.16:80":   true, // answers only root of the machine
		"100.100.100.200:80": true,
		"192.0.0.192:80":     true,
		"[fd00:ec2::254]:80": true,
		"[fe80::1%eth0]:80":  true,
		"[::1]:22":           true,

		"[::ffff:168.63.129.16]:80": true,
		"[::ffff:127.0.0.1]:22":     true,
		"168.63.129.17:80":          false,
		"100.100.100.100:80":        false,
	} {
		_, err := e.dial(netip.MustParseAddrPort(target))
		if errors.Is(err, errRefused) != refused {
			t.Errorf("%s: %v", target, err)
		}
	}
}
