package tunnel

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestTargets(t *testing.T) {
	pod := func(name, node string, host bool, phase corev1.PodPhase, port corev1.ContainerPort, ips ...string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{NodeName: node, HostNetwork: host,
				Containers: []corev1.Container{{Ports: []corev1.ContainerPort{port}}}},
			Status: corev1.PodStatus{Phase: phase},
		}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	tcp := func(port int32) corev1.ContainerPort { return corev1.ContainerPort{ContainerPort: port} }
	api := fake.NewClientset(
		pod("web", "node-a", false, corev1.PodRunning, tcp(80), "10.42.1.5", "fd00:42:1::5"),
		pod("done", "node-a", false, corev1.PodSucceeded, tcp(80), "10.42.1.6"),
		pod("liar", "node-a", false, corev1.PodRunning, tcp(80), "127.0.0.1", "169.254.169.254", "192.0.2.99", "192.0.2.10"),
		pod("hook", "node-a", true, corev1.PodRunning, tcp(9443), "192.0.2.10"),
		pod("dns", "node-a", true, corev1.PodRunning, corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP}, "192.0.2.10"),
		pod("other", "node-b", false, corev1.PodRunning, tcp(80), "10.42.2.5"),
	)
	node := targets{
		nodeName:    "node-a",
		nodeIPs:     []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")},
		kubeletPort: 10250,
		podCIDRs:    []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/32")},
		api:         api,
	}
	anyPodCIDR := node
	anyPodCIDR.podCIDRs = nil

	for _, test := range []struct {
		of     targets
		target string
		want   string // empty if it is refused
	}{
		{node, "node-a:10250", "192.0.2.10:10250"},
		{node, "192.0.2.10:10250", "192.0.2.10:10250"},
		{node, "[2001:db8::10]:10250", "[2001:db8::10]:10250"},
		{node, "node-b:10250", ""},
		{node, "localhost:10250", ""},
		{node, "192.0.2.11:10250", ""},
		{node, "127.0.0.1:10250", ""},
		{node, "[::1]:10250", ""},
		{node, "node-a:22", ""},
		{node, "192.0.2.10:22", ""},
		{node, "192.0.2.10:80", ""},
		{node, "192.0.2.10:9443", "192.0.2.10:9443"},
		{node, "node-a:9443", "192.0.2.10:9443"},
		{node, "192.0.2.10:53", ""},

		{node, "10.42.1.5:80", "10.42.1.5:80"},
		{node, "10.42.1.5:8080", "10.42.1.5:8080"},
		{node, "[::ffff:10.42.1.5]:80", "10.42.1.5:80"},
		{node, "[fd00:42:1::5]:80", "[fd00:42:1::5]:80"},
		{node, "10.42.1.6:80", ""},
		{node, "10.42.1.1:22", ""},
		{node, "10.42.2.5:80", ""},
		{node, "127.0.0.1:80", ""},
		{node, "169.254.169.254:80", ""},
		{node, "192.0.2.99:80", ""},
		{anyPodCIDR, "192.0.2.99:80", "192.0.2.99:80"},
		{anyPodCIDR, "169.254.169.254:80", ""},
		{anyPodCIDR, "127.0.0.1:80", ""},

		{node, "10.42.1.5", ""},
		{node, "10.42.1.5:http", ""},
		{node, "10.42.1.5:65616", ""},
		{node, ":10250", ""},
		{node, "", ""},
	} {
		got, err := test.of.resolve(t.Context(), test.target)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: got %q, %v; want %q", test.target, got, err, test.want)
		}
	}
}
