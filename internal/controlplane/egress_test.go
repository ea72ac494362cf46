package controlplane

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// recordedTunnels refuses every dial and remembers through which node.
type recordedTunnels struct{ node string }

func (r *recordedTunnels) Dial(_ context.Context, node, _ string) (net.Conn, error) {
	r.node = node
	return nil, errors.New("not connected in this test")
}

func TestEgress(t *testing.T) {
	node := func(name, cidr string, ips ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}}}
		for _, ip := range append(ips, name) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: ip})
		}
		return n
	}
	pod := func(name, node string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	factory := informers.NewSharedInformerFactory(fake.NewClientset(
		node("server", "10.42.0.0/24", "127.0.0.1"),
		node("node-a", "10.42.1.0/24", "192.0.2.10", "2001:db8::10"),
		node("node-b", "10.42.2.0/24", "192.0.2.20"),
		pod("local", "server", corev1.PodRunning, "127.0.0.2"),
		pod("web", "node-a", corev1.PodRunning, "10.42.1.5", "fd00:42:1:0::5"),
		pod("hook", "node-a", corev1.PodRunning, "192.0.2.10"),
		pod("done", "node-a", corev1.PodSucceeded, "10.42.2.7"),
		pod("next", "node-b", corev1.PodPending, "10.42.2.7"),
		// node-b would have the traffic of node-a's pod.
		pod("thief-1", "node-b", corev1.PodRunning, "10.42.1.5"),
		pod("thief-2", "node-b", corev1.PodRunning, "10.42.1.5"),
		pod("other-cni", "node-b", corev1.PodRunning, "172.20.0.9"),
		pod("unscheduled", "", corev1.PodPending),
	), 0)

	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())

	withNode := Egress{NodeName: "server", NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}
	tests := []struct {
		egress  Egress
		address string
		// want is the node whose tunnel is taken; none if it is dialed directly.
		want string
	}{
		{withNode, "server:" + port, ""},
		{withNode, "127.0.0.1:" + port, ""},
		{withNode, "localhost:" + port, ""},
		{withNode, "127.0.0.2:" + port, ""},
		{withNode, "node-a:10250", "node-a"},
		{withNode, "192.0.2.10:10250", "node-a"},
		{withNode, "[2001:db8::10]:10250", "node-a"},
		{withNode, "192.0.2.20:10250", "node-b"},
		{withNode, "10.42.1.5:443", "node-a"},
		{withNode, "[::ffff:10.42.1.5]:443", "node-a"},
		{withNode, "[fd00:42:1::5]:443", "node-a"},
		{withNode, "10.42.2.7:443", "node-b"},
		{withNode, "172.20.0.9:443", "node-b"},
		{Egress{}, "127.0.0.1:" + port, "server"},
		{Egress{}, "127.0.0.2:" + port, "server"},
		{Egress{}, "server:10250", "server"},
		{Egress{}, "localhost:" + port, ""},
		{Egress{}, "node-a:10250", "node-a"},
	}
	d, err := newEgressDialer(Egress{}, factory.Core().V1())
	if err != nil {
		t.Fatal(err)
	}
	defer factory.Shutdown()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory.Start(ctx.Done())
	for _, test := range tests {
		tunnels := &recordedTunnels{}
		d.Egress = test.egress
		d.Tunnels = tunnels
		conn, err := d.DialContext(t.Context(), "tcp", test.address)
		if tunnels.node != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s on %q: dialed through %q, %v; want %q", test.address, test.egress.NodeName, tunnels.node, err, test.want)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
	cancel()
	if _, err := d.DialContext(ctx, "tcp", "localhost:"+port); err == nil {
		t.Error("dialed when cancelled")
	}
}
