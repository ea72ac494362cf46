package network

import (
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestLeaveFormerRange has a bridge with an address of this node's pod CIDR, one of an earlier pod CIDR, and one of the user's.
func TestLeaveFormerRange(t *testing.T) {
	host(t)
	cluster, err := parseCIDRs([]string{"10.42.0.0/16", "fd42::/56"})
	if err != nil {
		t.Fatal(err)
	}
	own, err := parseCIDRs([]string{"10.42.1.0/24", "fd42:0:0:1::/64"})
	if err != nil {
		t.Fatal(err)
	}
	if err := leaveFormerRange(own, cluster); err != nil {
		t.Fatalf("without a bridge: %v", err)
	}
	testutil.Command(t, "ip link add cni0 type bridge")
	t.Cleanup(func() { testutil.Command(t, "ip link delete cni0") })
	stay := []string{"10.42.1.1/24", "fd42:0:0:1::1/64", "198.51.100.1/24"}
	for _, address := range append([]string{"10.42.0.1/24", "fd42::1/64"}, stay...) {
		testutil.Command(t, "ip address add "+address+" dev cni0")
	}
	if err := leaveFormerRange(own, cluster); err != nil {
		t.Fatal(err)
	}
	got := testutil.Command(t, "ip -o address show dev cni0")
	for _, address := range stay {
		if !strings.Contains(got, " "+address+" ") {
			t.Errorf("%s is gone:\n%s", address, got)
		}
	}
	if strings.Contains(got, " 10.42.0.1/24 ") || strings.Contains(got, " fd42::1/64 ") {
		t.Errorf("addresses of an earlier pod CIDR are left:\n%s", got)
	}
}

// TestSources gives this node the addresses of its gateway, then those of another pod CIDR, and removes
// them. Other addresses of the loopback device stay.
func TestSources(t *testing.T) {
	host(t)
	testutil.Command(t, "ip address add 198.51.100.1/32 dev lo")
	t.Cleanup(func() { testutil.Command(t, "ip address delete 198.51.100.1/32 dev lo") })
	cluster, err := parseCIDRs([]string{"10.42.0.0/16", "fd42::/56"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ own, want []string }{
		{[]string{"10.42.1.0/24", "fd42:0:0:1::/64"}, []string{"10.42.1.1/32 scope host", "fd42:0:0:1::1/128 scope global nodad deprecated"}},
		{[]string{"10.42.1.0/24", "fd42:0:0:1::/64"}, []string{"10.42.1.1/32 scope host", "fd42:0:0:1::1/128 scope global nodad deprecated"}},
		{[]string{"10.42.2.0/24"}, []string{"10.42.2.1/32 scope host"}},
		{nil, nil},
	} {
		own, err := parseCIDRs(test.own)
		if err == nil {
			err = keepSources(own, cluster)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := testutil.Command(t, "ip -o address show dev lo")
		for _, want := range append(test.want, "198.51.100.1/32") {
			if !strings.Contains(got, want) {
				t.Errorf("of %v, %s is missing in\n%s", test.own, want, got)
			}
		}
		if strings.Count(got, "10.42.")+strings.Count(got, "fd42:") != len(test.want) {
			t.Errorf("of %v, there is\n%s", test.own, got)
		}
	}
}
