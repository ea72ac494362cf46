package gateways

import (
	"maps"
	"slices"
	"testing"
)

// FuzzParseListening reads any value that a node may write. If ParseListening accepts the
// value, the ports are the same after they were written and read again.
func FuzzParseListening(f *testing.F) {
	for _, value := range []string{"", "80/tcp", "80/tcp,443/udp", "443/udp,80/tcp,80/tcp", "0/tcp", "80/sctp", "080/tcp", "80/tcp,", "\n", "99999999999999999999/tcp"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		ports, err := ParseListening(value)
		if err != nil {
			if ports != nil {
				t.Errorf("%q is refused, and is %v", value, ports)
			}
			return
		}
		again, err := ParseListening(FormatListening(slices.Collect(maps.Keys(ports))))
		if err != nil || !maps.Equal(ports, again) {
			t.Errorf("%q is %v, and then %v: %v", value, ports, again, err)
		}
	})
}
