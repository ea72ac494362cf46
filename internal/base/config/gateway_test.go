package config

import (
	"net/netip"
	"slices"
	"testing"
)

// TestHasGateway switches the gateway off by its name, and by that of k3s's ingress controller.
func TestHasGateway(t *testing.T) {
	for name, test := range map[string]struct {
		disable   []string
		runs      bool
		manifests []string
	}{
		"by default": {nil, true, nil},
		"other part": {[]string{"coredns", "mine"}, true, []string{"mine"}},
		"gateway":    {[]string{"gateway"}, false, nil},
		// A manifest of this name stays disabled, as in k3s.
		"traefik": {[]string{"traefik"}, false, []string{"traefik"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := Cluster{Disable: test.disable}
			if got := c.Has(Gateway); got != test.runs {
				t.Errorf("it runs: %t", got)
			}
			for _, name := range test.disable {
				if got := NamesPart(name); got != (name != "mine") {
					t.Errorf("%s names a part: %t", name, got)
				}
			}
			if got := c.DisabledManifests(); !slices.Equal(got, test.manifests) {
				t.Errorf("disabled manifests: %q", got)
			}
		})
	}
}

func TestGatewaySettings(t *testing.T) {
	g := GatewaySettings{Ports: []string{"8080", "53"}, TrustedProxies: []string{"192.0.2.0/24", "192.0.2.1", "2001:db8::1"}}
	if got := g.SharedPorts(); !slices.Equal(got, []uint16{8080, 53}) {
		t.Errorf("got ports %v", got)
	}
	var got []string
	for _, prefix := range g.TrustedPrefixes() {
		got = append(got, prefix.String())
	}
	if want := []string{"192.0.2.0/24", "192.0.2.1/32", "2001:db8::1/128"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if !g.TrustedPrefixes()[0].Contains(netip.MustParseAddr("192.0.2.7")) {
		t.Error("an address of the range is not trusted")
	}
}
