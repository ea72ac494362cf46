package endpoints

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

func TestForwardable(t *testing.T) {
	for address, want := range map[string]bool{
		"10.42.0.7":              true,
		"192.168.1.20":           true,
		"203.0.113.9":            true,
		"fd00::7":                true,
		"2001:db8::1":            true,
		"::ffff:10.42.0.7":       true,
		"127.0.0.1":              false,
		"127.8.9.10":             false,
		"::1":                    false,
		"::ffff:127.0.0.1":       false,
		"169.254.169.254":        false,
		"::ffff:169.254.169.254": false,
		"fe80::1":                false,
		"fe80::1%eth0":           false,
		"0.0.0.0":                false,
		"::":                     false,
		"::ffff:0.0.0.0":         false,
		"224.0.0.1":              false,
		"239.1.2.3":              false,
		"ff02::1":                false,
		"255.255.255.255":        false,
	} {
		if got := forwardable(netip.MustParseAddr(address)); got != want {
			t.Errorf("forwardable(%s) = %v", address, got)
		}
	}
}

// A slice that somebody wrote by hand gives only the endpoints that a gateway may connect to.
func TestOfLeavesOutAddressesOfTheNode(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"127.0.0.1"}},
			{Addresses: []string{"169.254.169.254"}},
			{Addresses: []string{"10.42.0.7"}},
		},
	}
	got := Of(&corev1.ServicePort{Name: "http", Port: 80}, []*discoveryv1.EndpointSlice{slice})
	if want := []netip.AddrPort{netip.MustParseAddrPort("10.42.0.7:8080")}; !slices.Equal(got, want) {
		t.Errorf("endpoints are %v, want %v", got, want)
	}
}
