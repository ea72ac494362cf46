package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// recordedTunnels refuses every dial and remembers through which node.
type recordedTunnels struct{ node string }

func (r *recordedTunnels) Dial(_ context.Context, node, _ string) (net.Conn, error) {
	r.node = node
	return nil, errors.New("not connected in this test")
}

// egressNode is a node with a range of pod addresses, and with its addresses and
// its name in its status.
func egressNode(name, cidr string, ips ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}}}
	for _, ip := range append(ips, name) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: ip})
	}
	return n
}

func egressPod(name, node string, phase corev1.PodPhase, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

// startEgress returns a dialer that knows the given objects.
func startEgress(t *testing.T, egress Egress, objects ...runtime.Object) *egressDialer {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	d, err := newEgressDialer(egress, factory.Core().V1())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(factory.Shutdown)
	t.Cleanup(cancel)
	factory.Start(ctx.Done())
	return d
}

func TestEgress(t *testing.T) {
	inHostNetwork := egressPod("hook", "node-a", corev1.PodRunning, "192.0.2.10")
	inHostNetwork.Spec.HostNetwork = true
	thiefInHostNetwork := egressPod("thief-5", "node-b", corev1.PodRunning, "192.0.2.10", "172.20.0.8")
	thiefInHostNetwork.Spec.HostNetwork = true
	objects := []runtime.Object{
		egressNode("server", "10.42.0.0/24", "127.0.0.1"),
		egressNode("node-a", "10.42.1.0/24", "192.0.2.10", "2001:db8::10"),
		// node-b claims addresses of node-a, of the server's node, and of nobody.
		egressNode("node-b", "10.42.2.0/24", "192.0.2.20", "10.42.1.6", "192.0.2.30", "127.0.0.2", "169.254.169.254", "192.0.2.40"),
		egressNode("node-c", "10.42.3.0/24", "192.0.2.30"),
		egressNode("node-d", "10.42.4.0/24"),
		egressNode("node-e", "10.42.4.128/25"),
		egressPod("local", "server", corev1.PodRunning, "127.0.0.2"),
		egressPod("web", "node-a", corev1.PodRunning, "10.42.1.5", "fd00:42:1:0::5", "172.20.0.5"),
		inHostNetwork,
		thiefInHostNetwork,
		egressPod("done", "node-a", corev1.PodSucceeded, "10.42.2.7", "172.20.0.7"),
		egressPod("next", "node-b", corev1.PodPending, "10.42.2.7", "172.20.0.7"),
		egressPod("thief-1", "node-b", corev1.PodRunning, "10.42.1.5", "192.0.2.10"),
		egressPod("thief-2", "node-b", corev1.PodRunning, "10.42.1.5"),
		egressPod("thief-3", "node-b", corev1.PodRunning, "172.20.0.5"),
		egressPod("thief-4", "node-b", corev1.PodRunning, "192.0.2.50"),
		egressPod("unscheduled", "", corev1.PodPending),
	}
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())

	own := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/32")}
	here := Egress{NodeName: "server", NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, PodCIDRs: own}
	noNode := Egress{PodCIDRs: own}
	otherCNI := here
	otherCNI.PodCIDRs = nil
	registered := here
	registered.Owner = func(ip netip.Addr) (string, bool) {
		switch ip.String() {
		case "192.0.2.30":
			return "node-c", true
		case "10.42.1.5", "172.20.0.7":
			return "node-c", true // it has registered addresses that are not those of a node
		}
		return "", false
	}
	registeredOtherCNI := registered
	registeredOtherCNI.PodCIDRs = nil
	// directly says that no tunnel is used, and several that the address is
	// refused because these nodes claim it.
	const directly = ""
	for _, test := range []struct {
		egress        Egress
		address, want string
		several       string
	}{
		{here, "server:" + port, directly, ""},
		{here, "127.0.0.1:" + port, directly, ""},
		{here, "localhost:" + port, directly, ""},
		{here, "127.0.0.2:" + port, directly, ""},
		{here, "node-a:10250", "node-a", ""},
		{here, "192.0.2.10:10250", "node-a", ""},
		{here, "[::ffff:192.0.2.10]:10250", "node-a", ""},
		{here, "[2001:db8::10]:10250", "node-a", ""},
		{here, "192.0.2.20:10250", "node-b", ""},
		{here, "192.0.2.30:10250", "", "node-b, node-c"},
		{here, "192.0.2.40:443", "node-b", ""},
		{here, "10.42.1.5:443", "node-a", ""},
		{here, "10.42.1.6:443", "node-a", ""},
		{here, "10.42.1.7:443", "node-a", ""},
		{here, "[::ffff:10.42.1.5]:443", "node-a", ""},
		{here, "10.42.2.7:443", "node-b", ""},
		{here, "10.42.4.7:443", "node-d", ""},
		{here, "10.42.4.200:443", "", "node-d, node-e"},
		{registered, "192.0.2.30:10250", "node-c", ""},
		{registered, "10.42.1.5:443", "node-a", ""},
		{noNode, "127.0.0.1:" + port, directly, ""},
		{noNode, "127.0.0.2:" + port, directly, ""},
		{noNode, "server:10250", "server", ""},
		{noNode, "10.42.0.5:443", "server", ""},
		{noNode, "localhost:" + port, directly, ""},
		{noNode, "node-a:10250", "node-a", ""},

		{otherCNI, "10.42.1.5:443", "", "node-a, node-b"},
		{otherCNI, "172.20.0.5:443", "", "node-a, node-b"},
		{otherCNI, "172.20.0.7:443", "node-b", ""},
		{otherCNI, "192.0.2.10:10250", "", "node-a, node-b"},
		{otherCNI, "192.0.2.20:10250", "node-b", ""},
		{otherCNI, "192.0.2.50:443", "node-b", ""},
		{otherCNI, "127.0.0.2:" + port, directly, ""},
		{otherCNI, "node-a:10250", "node-a", ""},
		{registeredOtherCNI, "192.0.2.30:10250", "node-c", ""},
		{registeredOtherCNI, "172.20.0.7:443", "", "node-b, node-c"},
	} {
		tunnels := &recordedTunnels{}
		test.egress.Tunnels = tunnels
		d := startEgress(t, test.egress, objects...)
		conn, err := d.DialContext(t.Context(), "tcp", test.address)
		if conn != nil {
			_ = conn.Close()
		}
		fails := test.want != directly || test.several != ""
		if tunnels.node != test.want || (err != nil) != fails || test.several != "" && !strings.Contains(err.Error(), "nodes "+test.several+" all claim") {
			t.Errorf("%s: dialed through %q, %v; want %q, or refused because of %q", test.address, tunnels.node, err, test.want, test.several)
		}
	}

	d := startEgress(t, here, objects...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.DialContext(ended, "tcp", "localhost:"+port); err == nil {
		t.Error("dialed when cancelled")
	}
}

// TestResolveNodes makes package net resolve the names of nodes in the requests
// for which upstream resolves them, and in no others.
func TestResolveNodes(t *testing.T) {
	here := Egress{NodeName: "server.invalid", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	d := startEgress(t, here, egressNode("node-a.invalid", "10.42.1.0/24", "192.0.2.10", "2001:db8::10"), egressNode("node-b.invalid", "10.42.2.0/24"))
	if !cache.WaitForCacheSync(t.Context().Done(), d.hasSynced) {
		t.Fatal("the cache did not sync")
	}
	for _, test := range []struct{ resource, subresource, host, want string }{
		{"nodes", "proxy", "node-a.invalid", "192.0.2.10 2001:db8::10"},
		{"nodes", "proxy", "server.invalid", "192.0.2.1"},
		{"nodes", "proxy", "node-b.invalid", ""},
		{"nodes", "proxy", "localhost", "127.0.0.1"},
		{"nodes", "proxy", "192.0.2.99", "192.0.2.99"},
		{"nodes", "status", "node-a.invalid", "not here"},
		{"pods", "proxy", "node-a.invalid", "not here"},
	} {
		var got []string
		handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, here := r.Context().(resolving); !here {
				got = []string{"not here"}
				return
			}
			ips, err := net.DefaultResolver.LookupIPAddr(r.Context(), test.host)
			if (err == nil) != (test.want != "") {
				t.Errorf("%s of %s/%s: %v", test.host, test.resource, test.subresource, err)
			}
			for _, ip := range ips {
				if !ip.IP.Equal(net.IPv6loopback) {
					got = append(got, ip.String())
				}
			}
		})
		same := func(handler http.Handler, _ *genericapiserver.Config) http.Handler { return handler }
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		info := &request.RequestInfo{IsResourceRequest: true, Resource: test.resource, Subresource: test.subresource}
		d.resolveNodes(same)(handler, nil).ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), info)))
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s of %s/%s: got %v, want %s", test.host, test.resource, test.subresource, got, test.want)
		}
	}
}

// TestKubeletsAreDialedByName wants names if kedge dials and the user sets nothing else.
func TestKubeletsAreDialedByName(t *testing.T) {
	here := Egress{Tunnels: &recordedTunnels{}}
	for _, test := range []struct {
		egress Egress
		args   []string
		want   string
	}{
		{here, nil, "Hostname"},
		{here, []string{"kubelet-preferred-address-types=ExternalIP,InternalIP"}, "ExternalIP,InternalIP"},
		{here, []string{"egress-selector-config-file=/etc/egress.yaml"}, "InternalIP,ExternalIP,Hostname"},
		{Egress{}, nil, "InternalIP,ExternalIP,Hostname"},
	} {
		o, err := newOptions(&Config{
			Addr: &net.TCPAddr{Port: 6443}, AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Cluster: config.Default().Cluster,
			Egress: test.egress, Args: test.args,
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(o.KubeletConfig.PreferredAddressTypes, ","); got != test.want {
			t.Errorf("%v: %s, want %s", test.args, got, test.want)
		}
	}
}
