package server

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/host"
)

func TestCheckVIP(t *testing.T) {
	node := host.Node{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for vip, want := range map[string]string{
		"":            "",
		"192.0.2.100": "",
		"192.0.2.1":   "is the address of this node",
		"fd00::1":     "another address family",
	} {
		err := checkVIP(vip, node)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", vip, err)
		}
	}
}
