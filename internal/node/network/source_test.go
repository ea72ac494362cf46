package network

import (
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

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
