package tunnel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

// targets decides what an agent dials for a server: its own kubelet, its own pods, and
// the ports that its pods in the host's network declare. It refuses everything else on
// the host and around it.
type targets struct {
	nodeName    string
	nodeIPs     []netip.Addr
	kubeletPort uint16
	// podCIDRs limit the addresses that pods may claim. Empty means no limit.
	podCIDRs []netip.Prefix
	api      kubernetes.Interface
}

// resolve returns the address to dial for a target, HOST:PORT, or the reason for a
// refusal. The node's name stands for its first address.
func (t *targets) resolve(ctx context.Context, target string) (string, error) {
	host, portText, err := net.SplitHostPort(target)
	if err != nil {
		return "", fmt.Errorf("read target: %w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return "", fmt.Errorf("read target: %q is not a port", portText)
	}
	ip := t.nodeIPs[0]
	if host != t.nodeName {
		if ip, err = netip.ParseAddr(host); err != nil {
			return "", fmt.Errorf("refused: %s is not node %s", host, t.nodeName)
		}
		ip = ip.Unmap()
	}
	address := netip.AddrPortFrom(ip, uint16(port)).String()
	own := slices.Contains(t.nodeIPs, ip)
	if own && uint16(port) == t.kubeletPort {
		return address, nil
	}
	if !own && !t.canBePod(ip) {
		return "", fmt.Errorf("refused: %s is not an address of node %s or its pods", ip, t.nodeName)
	}
	// First from the API server's cache, which is rarely behind.
	for _, version := range []string{"0", ""} {
		pods, err := t.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", t.nodeName).String(),
			ResourceVersion: version,
		})
		if err != nil {
			return "", fmt.Errorf("list pods of node %s: %w", t.nodeName, err)
		}
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == t.nodeName && listensOn(&pod, own, ip, uint16(port))
		}) {
			return address, nil
		}
	}
	if own {
		return "", fmt.Errorf("refused: on node %s neither the kubelet nor a pod in the host's network has port %d", t.nodeName, port)
	}
	return "", fmt.Errorf("refused: no pod of node %s has address %s", t.nodeName, ip)
}

// canBePod tells whether a pod may have this address, whatever its status says. Loopback
// and link-local addresses belong to the host, or to a cloud's metadata service.
func (t *targets) canBePod(ip netip.Addr) bool {
	return ip.IsGlobalUnicast() && (len(t.podCIDRs) == 0 ||
		slices.ContainsFunc(t.podCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }))
}

// listensOn tells whether a pod has an address, or, for a pod in the host's
// network, declares a port.
func listensOn(pod *corev1.Pod, host bool, ip netip.Addr, port uint16) bool {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return false // another pod may have its address by now
	case pod.Spec.HostNetwork != host:
		return false
	case !host:
		return slices.ContainsFunc(pod.Status.PodIPs, func(p corev1.PodIP) bool {
			podIP, err := netip.ParseAddr(p.IP)
			return err == nil && podIP.Unmap() == ip
		})
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP && p.ContainerPort == int32(port)
		})
	})
}
