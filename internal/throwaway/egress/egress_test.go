package egress

import (
	"errors"
	"net/netip"
	"testing"
)

// TestDialRefuses wants nodes to reach nothing that trusts the users of the machine, and no other cluster.
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
	} {
		_, err := e.dial(netip.MustParseAddrPort(target))
		if errors.Is(err, errRefused) != refused {
			t.Errorf("%s: %v", target, err)
		}
	}
}
