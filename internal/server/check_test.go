package server

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
)

// TestCheckAdvertised has an address that this host has not.
func TestCheckAdvertised(t *testing.T) {
	here := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for name, test := range map[string]struct {
		advertised, external, vip string
		want                      string
	}{
		"none":             {},
		"of the host":      {advertised: "192.0.2.1"},
		"of no interface":  {advertised: "203.0.113.7", want: "on no interface of this host: set it to one of [192.0.2.1]"},
		"an external one":  {advertised: "203.0.113.7", external: "203.0.113.7"},
		"another external": {advertised: "203.0.113.7", external: "203.0.113.8", want: "set node-external-ip to 203.0.113.7, too"},
		"the vip":          {advertised: "192.0.2.100", vip: "192.0.2.100"},
	} {
		cfg := config.Default()
		cfg.Server.AdvertiseAddress, cfg.Server.VIP = test.advertised, test.vip
		if test.external != "" {
			cfg.Node.NodeExternalIP = []string{test.external}
		}
		err := checkAdvertised(cfg, here)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// TestVIPOfNoNetwork wants a start to end before anything runs if no interface of this host
// is in the network of the address.
func TestVIPOfNoNetwork(t *testing.T) {
	cfg := config.Default()
	cfg.Server.VIP = "198.51.100.77"
	err := Resolved{cfg: cfg, node: host.Node{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}.CheckAddresses()
	if err == nil || !strings.Contains(err.Error(), "no interface of this host is in the network of 198.51.100.77") {
		t.Errorf("got %v", err)
	}
}

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
