package proxy

import (
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestBypass has rules of an earlier service proxy that lead connections to a server somewhere else.
func TestBypass(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	testutil.Command(t, "ip link set lo up")
	for _, address := range []string{"192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"} {
		testutil.Command(t, "ip address add "+address+" dev lo")
		defer testutil.Command(t, "ip address del "+address+" dev lo")
	}
	for _, command := range []string{
		"add table ip kube-proxy",
		"add chain ip kube-proxy nat-output { type nat hook output priority -100; }",
		"add rule ip kube-proxy nat-output ip daddr { 192.0.2.1, 192.0.2.3 } tcp dport 6443 dnat to 192.0.2.2:80",
	} {
		testutil.Command(t, "nft "+command)
	}
	defer testutil.Command(t, "nft delete table ip kube-proxy")
	for _, at := range []string{"192.0.2.1:6443", "192.0.2.2:80", "192.0.2.3:6443"} {
		listener, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, at)
				conn.Close()
			}
		}()
	}
	want := func(when, target, answer string) {
		t.Helper()
		conn, err := net.Dial("tcp", target)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer conn.Close()
		if got, err := io.ReadAll(conn); err != nil || string(got) != answer {
			t.Errorf("%s: at %s answers %q (%v), want %q", when, target, got, err, answer)
		}
	}
	want("before", "192.0.2.1:6443", "192.0.2.2:80")
	for range 2 {
		if err := bypass(t.Context(), []netip.Addr{netip.MustParseAddr("192.0.2.1")}); err != nil {
			t.Fatal(err)
		}
		want("a server", "192.0.2.1:6443", "192.0.2.1:6443")
		want("another address", "192.0.2.3:6443", "192.0.2.2:80")
	}
	if err := PassBy(t.Context(), []string{"192.0.2.3:6443"}); err != nil {
		t.Fatal(err)
	}
	want("a new server", "192.0.2.3:6443", "192.0.2.3:6443")
	want("a server no more", "192.0.2.1:6443", "192.0.2.2:80")
	if err := bypass(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if tables := testutil.Command(t, "nft list tables"); strings.Contains(tables, bypassTable) {
		t.Errorf("there is still a table: %s", tables)
	}
}
