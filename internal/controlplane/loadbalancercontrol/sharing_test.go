package loadbalancercontrol

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// TestSharing has an older Service with an address of a pool, and a younger one that asks for the same.
func TestSharing(t *testing.T) {
	const address = "198.51.100.1"
	key := func(value string) func(*corev1.Service) { return annotated(servicelb.ShareAnnotation, value) }
	in := func(namespace string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Namespace = namespace }
	}
	selects := func(app string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": app} }
	}
	asks := annotated(servicelb.AddressAnnotation, address)
	allows := annotated(servicelb.ShareNamespacesAnnotation, "shop, guests")
	type changes = []func(*corev1.Service)
	for _, test := range []struct {
		name       string
		old, young changes
		// why has words of the reason why the younger one does not get the address.
		why string
	}{
		{"no key", nil, changes{port(81, "")}, "kedge.dev/allow-shared-ip"},
		{"a key on one only", nil, changes{key("a"), port(81, "")}, "kedge.dev/allow-shared-ip"},
		{"a key on the other only", changes{key("a")}, changes{port(81, "")}, "kedge.dev/allow-shared-ip"},
		{"other keys", changes{key("a")}, changes{key("b"), port(81, "")}, "kedge.dev/allow-shared-ip"},
		{"the same key", changes{key("a")}, changes{key("a"), port(81, "")}, ""},
		{"MetalLB's annotation", changes{annotated("metallb.io/allow-shared-ip", "a")}, changes{key("a"), port(81, "")}, ""},
		{"MetalLB's old annotation", changes{key("a")}, changes{annotated("metallb.universe.tf/allow-shared-ip", "a"), port(81, "")}, ""},
		{"the same port", changes{key("a")}, changes{key("a")}, "port 80/tcp"},
		{"the same number, another protocol", changes{key("a")}, changes{key("a"), port(80, corev1.ProtocolUDP)}, ""},
		{"another tenant", changes{key("a")}, changes{key("a"), port(81, ""), in("tenant")}, "another namespace"},
		{"another tenant allows itself", changes{key("a")}, changes{key("a"), port(81, ""), in("shop"), allows}, "another namespace"},
		{"another tenant that is allowed", changes{key("a"), allows}, changes{key("a"), port(81, ""), in("guests")}, ""},
		{"another tenant than the one that is allowed", changes{key("a"), allows}, changes{key("a"), port(81, ""), in("guest")}, "another namespace"},
		{"a tenant without a key that is allowed", changes{allows}, changes{port(81, ""), in("guests")}, "kedge.dev/allow-shared-ip"},
		{"Local beside Cluster", changes{key("a")}, changes{key("a"), port(81, ""), local}, "externalTrafficPolicy"},
		{"Local with other pods", changes{key("a"), local, selects("a")}, changes{key("a"), port(81, ""), local, selects("b")}, "externalTrafficPolicy"},
		{"Local with the same pods", changes{key("a"), local, selects("a")}, changes{key("a"), port(81, ""), local, selects("a")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			old, young := aService("old", 2, append(test.old, asks)...), aService("young", 1, append(test.young, asks)...)
			w := &world{
				nodes: []*node{aNode(1), aNode(2)}, services: []*corev1.Service{young, old}, pools: []*pool{aPool(t, "a", false, "198.51.100.1-198.51.100.9")},
				local:     func(*corev1.Service) localPorts { return localPorts{"node-2": nil} },
				namespace: func(string) labels.Set { return nil },
			}
			for _, when := range []string{"at first", "later"} {
				outcomes, leases := w.plan()
				if got := outcomes[old.UID]; len(got.addresses) != 1 || got.reason != "" {
					t.Errorf("%s the older one has %v: %s", when, got.addresses, got.message)
				}
				got := outcomes[young.UID]
				if shares := len(got.addresses) == 1 && got.addresses[0].String() == address; shares != (test.why == "") || !strings.Contains(got.message, test.why) {
					t.Errorf("%s the younger one has %v: %q", when, got.addresses, got.message)
				}
				lease := leases[netip.MustParseAddr(address)]
				if lease == nil || strings.Contains(lease.services, nameOf(young)) != (test.why == "") || len(lease.nodes) == 0 {
					t.Errorf("%s the Lease is %+v", when, lease)
				}
				// The next plan begins with the Leases of this one.
				w.held = map[netip.Addr]string{netip.MustParseAddr(address): lease.services}
			}
		})
	}
}

// TestSharingUnasked has Services with one key that ask for no address: they get the same one, as long as
// their ports differ. Somebody else gets another one.
func TestSharingUnasked(t *testing.T) {
	key := annotated(servicelb.MetalLBShareAnnotation, "a")
	pooled := class(servicelb.PoolClass)
	services := []*corev1.Service{
		aService("alone", 5, pooled), aService("first", 4, pooled, key), aService("second", 3, pooled, key, port(81, "")),
		aService("again", 2, pooled, key), aService("third", 1, pooled, key, port(82, "")),
	}
	w := &world{
		nodes: []*node{aNode(1)}, services: services, pools: []*pool{aPool(t, "a", false, "198.51.100.1-198.51.100.9")},
		namespace: func(string) labels.Set { return nil },
	}
	outcomes, leases := w.plan()
	for name, want := range map[string]string{"alone": "198.51.100.1", "first": "198.51.100.2", "second": "198.51.100.2", "again": "198.51.100.3", "third": "198.51.100.2"} {
		i := slices.IndexFunc(services, func(s *corev1.Service) bool { return s.Name == name })
		if got := outcomes[services[i].UID]; len(got.addresses) != 1 || got.addresses[0].String() != want {
			t.Errorf("%s has %v, want %s: %s", name, got.addresses, want, got.message)
		}
	}
	if got := leases[netip.MustParseAddr("198.51.100.2")]; got.services != "default/first,default/second,default/third" {
		t.Errorf("the Lease is for %s", got.services)
	}
}
