package host

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
)

func mustPrefixes(list ...string) (prefixes []netip.Prefix) {
	for _, s := range list {
		prefixes = append(prefixes, netip.MustParsePrefix(s))
	}
	return prefixes
}

func mustAddrs(list ...string) (addrs []netip.Addr) {
	for _, s := range list {
		addrs = append(addrs, netip.MustParseAddr(s))
	}
	return addrs
}

func TestNodeName(t *testing.T) {
	for _, test := range []struct{ configured, hostname, want, err string }{
		{hostname: "Pi-4.lan", want: "pi-4.lan"},
		{configured: "edge1", hostname: "x", want: "edge1"},
		{hostname: "my_host", err: "--node-name"},
		{configured: "-", hostname: "x", err: "node-name"},
	} {
		got, err := nodeName(test.configured, test.hostname)
		if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("nodeName(%q, %q) is %q, %v", test.configured, test.hostname, got, err)
		}
	}
}

// TestNodeID keeps the ID that it makes.
func TestNodeID(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node", "id")
	first, err := ensureID(file)
	if err != nil || len(first) != 8 {
		t.Fatalf("got %q, %v", first, err)
	}
	if again, err := ensureID(file); err != nil || again != first {
		t.Errorf("got %q, %v, want %q", again, err, first)
	}
}

func TestNodeIPs(t *testing.T) {
	local := func() ([]netip.Addr, error) {
		return mustAddrs("127.0.0.1", "192.0.2.7", "2001:db8::7", "fe80::1"), nil
	}
	v4, dual := mustPrefixes("10.42.0.0/16"), mustPrefixes("2001:db8:42::/56", "10.42.0.0/16")
	for name, test := range map[string]struct {
		configured string
		pods       []netip.Prefix
		want       []netip.Addr
		err        string
	}{
		"one":                       {"192.0.2.7", v4, mustAddrs("192.0.2.7"), ""},
		"both, in the pods' order":  {"192.0.2.7 2001:db8::7", dual, mustAddrs("2001:db8::7", "192.0.2.7"), ""},
		"a family is missing":       {"192.0.2.7", dual, nil, "no IPv6 address"},
		"not of this machine":       {"192.0.2.8", v4, nil, "has no address 192.0.2.8"},
		"loopback":                  {"127.0.0.1", v4, nil, "other nodes cannot reach"},
		"link-local":                {"fe80::1", v4, nil, "other nodes cannot reach"},
		"not an address":            {"eth0", v4, nil, "not an IP address"},
		"more than the pods' needs": {"192.0.2.7 2001:db8::7", v4, mustAddrs("192.0.2.7"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := configuredIPs(strings.Fields(test.configured), test.pods, local)
			if !slices.Equal(got, test.want) || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestNoDefaultRoute(t *testing.T) {
	_, err := defaultIPs(mustPrefixes("10.42.0.0/16"), func(bool) (netip.Addr, error) { return netip.Addr{}, nil })
	if err == nil || !strings.Contains(err.Error(), "--node-ip") {
		t.Errorf("error is %v", err)
	}
}

// TestCardAddress has hosts without a default route.
func TestCardAddress(t *testing.T) {
	link := func(name, parent string) netlink.Link {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, ParentDev: parent}}
	}
	addresses := map[string]netip.Addr{"eth0": netip.MustParseAddr("192.0.2.7"), "eth1": netip.MustParseAddr("198.51.100.7"), "cni0": netip.MustParseAddr("10.42.0.1")}
	for name, test := range map[string]struct {
		links []netlink.Link
		want  netip.Addr
	}{
		"one card":                   {[]netlink.Link{link("lo", ""), link("cni0", ""), link("eth0", "0000:00:03.0")}, addresses["eth0"]},
		"one of two has an address":  {[]netlink.Link{link("wlan0", "mmc1:0001:1"), link("eth1", "1-1:1.0")}, netip.Addr{}},
		"two cards":                  {[]netlink.Link{link("eth0", "virtio0"), link("eth1", "virtio1")}, netip.Addr{}},
		"no card":                    {[]netlink.Link{link("lo", ""), link("cni0", "")}, netip.Addr{}},
		"a card without any address": {[]netlink.Link{link("wlan0", "mmc1:0001:1")}, netip.Addr{}},
	} {
		got, err := cardAddress(test.links, func(l netlink.Link) (netip.Addr, error) { return addresses[l.Attrs().Name], nil })
		if err != nil || got != test.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
}

func TestResolveThisNode(t *testing.T) {
	if ip, err := defaultRouteAddress(unix.AF_INET); err != nil || !ip.IsValid() {
		t.Skipf("no default route here: %v", err)
	}
	node, err := ResolveNode(config.Node{NodeName: "test"}, mustPrefixes("10.42.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	local, err := localAddresses()
	if err != nil {
		t.Fatal(err)
	}
	if len(node.IPs) != 1 || !slices.Contains(local, node.IPs[0]) {
		t.Errorf("got %+v, which is none of %v", node, local)
	}
}
