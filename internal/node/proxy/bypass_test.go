package proxy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// bypassed are addresses of one family: those of two servers, the one to which rules of an earlier service
// proxy lead away what is for the servers, and the network of a pod.
type bypassed struct{ family, server, other, thief, pod string }

// TestBypass has rules of an earlier service proxy that lead connections to a server somewhere else.
func TestBypass(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	testutil.Command(t, "ip link set lo up")
	host, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, of := range []bypassed{
		{"ip", "192.0.2.1", "192.0.2.3", "192.0.2.2", "10.42.0.0/24"},
		{"ip6", "2001:db8::1", "2001:db8::3", "2001:db8::2", "fd42::/64"},
	} {
		t.Run(of.family, func(t *testing.T) { of.test(t, place{host}, newPlace(t, "bypass", of.pod)) })
	}
}

func (of bypassed) test(t *testing.T, host, pod place) {
	for _, address := range []string{of.server, of.other, of.thief} {
		testutil.Command(t, "ip address add "+address+" dev lo")
		t.Cleanup(func() { testutil.Command(t, "ip address del "+address+" dev lo") })
	}
	testutil.Command(t, "nft add table "+of.family+" kube-proxy")
	t.Cleanup(func() { testutil.Command(t, "nft delete table "+of.family+" kube-proxy") })
	thief := net.JoinHostPort(of.thief, "80")
	for _, hook := range []string{"output", "prerouting"} {
		testutil.Command(t, "nft add chain "+of.family+" kube-proxy nat-"+hook+" { type nat hook "+hook+" priority -100; }")
		testutil.Command(t, fmt.Sprintf("nft add rule %s kube-proxy nat-%s %s daddr { %s, %s } tcp dport { 6443, 30080 } dnat to %s", of.family, hook, of.family, of.server, of.other, thief))
	}
	at := func(address string) string { return net.JoinHostPort(address, "6443") }
	for _, address := range []string{thief, at(of.server), at(of.other), net.JoinHostPort(of.server, "30080")} {
		host.serve(t, address, address)
	}
	want := func(when, target, answer string, from ...place) {
		t.Helper()
		for _, caller := range from {
			err := caller.within(t, func() error {
				conn, err := net.Dial("tcp", target)
				if err != nil {
					return err
				}
				defer conn.Close()
				if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), answer+" from ") {
					return fmt.Errorf("at %s answers %q (%v), want %s", target, got, err, answer)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: of %v: %v", when, caller, err)
			}
		}
	}
	server := netip.MustParseAddrPort(at(of.server))
	want("before", at(of.server), thief, host, pod)
	for range 2 {
		if err := bypass(t.Context(), []netip.AddrPort{server}); err != nil {
			t.Fatal(err)
		}
		want("a server", at(of.server), at(of.server), host, pod)
		want("another address", at(of.other), thief, host, pod)
		want("another port of a server", net.JoinHostPort(of.server, "30080"), thief, pod)
	}
	if err := PassBy(t.Context(), []string{at(of.other)}); err != nil {
		t.Fatal(err)
	}
	want("a new server", at(of.other), at(of.other), host, pod)
	want("a server no more", at(of.server), thief, host, pod)
	if err := bypass(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if tables := testutil.Command(t, "nft list tables"); strings.Contains(tables, bypassTable) {
		t.Errorf("there is still a table: %s", tables)
	}
}
