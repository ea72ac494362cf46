package services

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

func TestNodeOf(t *testing.T) {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{gateways.ListeningAnnotation: "30080/tcp"}}}
	for _, address := range []string{"192.0.2.66", "not an address", "192.0.2.1", "192.0.2.2", "2001:db8::1"} {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "2001:db8::2"})
	got := nodeOf(object, func(address netip.Addr) (string, bool) { return "b", address == netip.MustParseAddr("192.0.2.66") })
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if !slices.Equal(got.Addresses, want) || len(got.Listening) != 1 {
		t.Errorf("got %+v", got)
	}
	object.Annotations[gateways.ListeningAnnotation] = "everything"
	if got := nodeOf(object, func(netip.Addr) (string, bool) { return "", false }); len(got.Listening) != 0 {
		t.Errorf("from nonsense got %+v", got)
	}
}

func TestHostPodOf(t *testing.T) {
	pod := func(change func(*corev1.Pod)) hostPod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{ContainerPort: 8080}, {ContainerPort: 8443, HostPort: 443}, {ContainerPort: 53, HostPort: 53, Protocol: corev1.ProtocolUDP},
			{ContainerPort: 80, HostPort: 80, HostIP: "127.0.0.1"},
		}}}}}
		change(p)
		return hostPodOf(p)
	}
	if got := pod(func(*corev1.Pod) {}); got.node != "n" || !slices.Equal(got.ports, []string{"443/tcp", "53/udp"}) {
		t.Errorf("got %+v", got)
	}
	if got := pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }); len(got.ports) != 0 {
		t.Errorf("of a pod that has ended got %+v", got)
	}
	if got := pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }); len(got.ports) != 0 {
		t.Errorf("of a pod without a node got %+v", got)
	}
	h := &hostPorts{pods: map[string]hostPod{"b/b": {"n", []string{"80/tcp"}}, "a/a": {"n", []string{"443/tcp"}}, "0/0": {"m", []string{"80/tcp"}}}}
	ports := []front.Port{{Number: 80, Transport: "tcp"}, {Number: 443, Transport: "tcp"}}
	found := h.find("n", ports)
	if len(found) != 2 || found[0].pod != "b/b" || found[0].port.Number != 80 || found[1].pod != "a/a" || found[1].port.Number != 443 {
		t.Errorf("found %+v", found)
	}
	if found := h.find("other", ports); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
}
