package loadbalancercontrol

import (
	"encoding/json"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// FuzzRange reads anything as addresses of a pool. A range has its ends, and nothing before
// or after them.
func FuzzRange(f *testing.F) {
	for _, text := range []string{"192.0.2.240/28", "192.0.2.1-192.0.2.9", "fd00::/64", "fd00::1", "0.0.0.0/0", "::ffff:192.0.2.1", "-", "192.0.2.255-192.0.3.0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRange(text)
		if err != nil {
			return
		}
		if !r.contains(r.first) || !r.contains(r.last) || r.last.Less(r.first) || r.first.Is4() != r.last.Is4() {
			t.Errorf("%q is from %s to %s", text, r.first, r.last)
		}
		if before := r.first.Prev(); before.IsValid() && r.contains(before) {
			t.Errorf("%q has %s, which is before %s", text, before, r.first)
		}
		if after := r.last.Next(); after.IsValid() && r.contains(after) {
			t.Errorf("%q has %s, which is after %s", text, after, r.last)
		}
	})
}

// FuzzNode reads what a node says of itself. It has confirmed a port only if it has said so,
// and has no addresses of others.
func FuzzNode(f *testing.F) {
	for _, seed := range [][2]string{{`{"80/tcp":""}`, "192.0.2.1"}, {`{"80/tcp":"sshd"}`, "192.0.2.2"}, {`{"80/tcp":null}`, "::ffff:192.0.2.2"}, {`[]`, "a"}, {`{"80/tcp":"",`, ""}} {
		f.Add(seed[0], seed[1])
	}
	other := netip.MustParseAddr("192.0.2.2")
	f.Fuzz(func(t *testing.T, ports, address string) {
		n := newNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{servicelb.PortsAnnotation: ports}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeExternalIP, Address: address},
			}},
		}, true, func(asked netip.Addr) (string, bool) { return "b", asked == other })
		if len(n.internal) > 0 {
			t.Errorf("it has the address %s, which is not registered", n.internal[0])
		}
		for _, external := range n.external {
			if external == other || external.Is4In6() {
				t.Errorf("it has the external address %s", external)
			}
		}
		if len(n.ports) > 0 && !json.Valid([]byte(ports)) {
			t.Errorf("%q confirms %v", ports, n.ports)
		}
	})
}
