package dialing

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// TestRefused has addresses that no backend can have. Nothing is sent to them.
func TestRefused(t *testing.T) {
	d := Dialer{Services: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}}
	for _, address := range []string{
		"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1", "224.0.0.1", "255.255.255.255",
		"fd00:ec2::254", "168.63.129.16", "100.100.100.200", "10.43.0.1", "::ffff:10.43.0.1",
	} {
		for _, network := range []string{"tcp", "udp"} {
			conn, err := d.Dial(t.Context(), network, netip.AddrPortFrom(netip.MustParseAddr(address), 80))
			if err == nil {
				_ = conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "does not connect to") {
				t.Errorf("%s %s: %v", network, address, err)
			}
		}
	}
}

// TestSource calls pods and others from a node whose pods have 10.42.1.0/24 and fd42:0:0:1::/64.
func TestSource(t *testing.T) {
	testutil.Command(t, "ip link set lo up")
	for _, address := range []string{"10.42.1.1/32", "fd42:0:0:1::1/128", "10.42.7.7/32", "fd42:0:0:7::7/128", "198.51.100.7/32"} {
		testutil.Command(t, "ip address add "+address+" dev lo")
		t.Cleanup(func() { testutil.Command(t, "ip address delete "+address+" dev lo") })
	}
	own := []string{"10.42.1.0/24", "fd42:0:0:1::/64"}
	d := Dialer{Pods: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/48")}, PodCIDRs: func() []string { return own }}
	for _, test := range []struct {
		to, want string
		own      []string
	}{
		{"10.42.7.7", "10.42.1.1", own},
		{"::ffff:10.42.7.7", "10.42.1.1", own},
		{"fd42:0:0:7::7", "fd42:0:0:1::1", own},
		{"198.51.100.7", "198.51.100.7", own},
		{"10.42.7.7", "10.42.7.7", nil},
		// The network of pods is not there yet.
		{"10.42.7.7", "10.42.7.7", []string{"10.42.3.0/24"}},
	} {
		d.PodCIDRs = func() []string { return test.own }
		listener, err := net.Listen("tcp", net.JoinHostPort(test.to, "8080"))
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", net.JoinHostPort(test.to, "8080"))
		if err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"tcp", "udp"} {
			conn, err := d.Dial(t.Context(), network, netip.AddrPortFrom(netip.MustParseAddr(test.to), 8080))
			if err != nil {
				t.Errorf("%s %s: %v", network, test.to, err)
				continue
			}
			from := netip.MustParseAddrPort(conn.LocalAddr().String()).Addr().Unmap().String()
			if from != test.want {
				t.Errorf("%s %s is called from %s, want %s", network, test.to, from, test.want)
			}
			_ = conn.Close()
		}
		_, _ = listener.Close(), packets.Close()
	}
}

// TestPorts makes more connections than an address has ports. Each endpoint can have all of them.
func TestPorts(t *testing.T) {
	testutil.Command(t, "ip link set lo up")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40003"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.42.1.1/32", "10.42.7.7/32", "10.42.7.8/32"} {
		testutil.Command(t, "ip address add "+address+" dev lo")
		t.Cleanup(func() { testutil.Command(t, "ip address delete "+address+" dev lo") })
	}
	d := Dialer{Pods: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, PodCIDRs: func() []string { return []string{"10.42.1.0/24"} }}
	for _, to := range []string{"10.42.7.7", "10.42.7.8"} {
		listener, err := net.Listen("tcp", to+":8080")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		for range 3 {
			conn, err := d.Dial(t.Context(), "tcp", netip.AddrPortFrom(netip.MustParseAddr(to), 8080))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if from := conn.LocalAddr().(*net.TCPAddr).IP.String(); from != "10.42.1.1" {
				t.Errorf("%s is called from %s", to, from)
			}
		}
	}
}
