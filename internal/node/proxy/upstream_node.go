// Follows k8s.io/kubernetes v1.37.2, pkg/proxy/node.go.
// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/server_linux.go.

package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

// node gives access to this node's object. It replaces upstream's NodeManager in pkg/proxy/node.go,
// whose informer cannot be stopped and which calls os.Exit.
//
//upstream:follows k8s.io/kubernetes/pkg/proxy/node.go NodeManager newNodeManager NodeManager.OnNodeChange
type node struct {
	informer coreinformers.NodeInformer
	name     string
	// added receives when the node was added or updated.
	added chan struct{}
}

func newNode(informer coreinformers.NodeInformer, name string) *node {
	n := &node{informer: informer, name: name, added: make(chan struct{}, 1)}
	notify := func(any) {
		select {
		case n.added <- struct{}{}:
		default:
		}
	}
	// An error would mean that the informer has ended. Then this component ends too.
	_, _ = informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    notify,
		UpdateFunc: func(_, object any) { notify(object) },
	})
	return n
}

// Node returns this node's object, or nil while it is not known.
func (n *node) Node() *corev1.Node {
	found, err := n.informer.Lister().Get(n.name)
	if err != nil {
		return nil
	}
	return found
}

// waitForPodCIDRs returns the node's pod CIDRs when it has any. The only error is that ctx is
// cancelled.
func (n *node) waitForPodCIDRs(ctx context.Context) ([]string, error) {
	for {
		if found := n.Node(); found != nil && len(found.Spec.PodCIDRs) > 0 {
			return found.Spec.PodCIDRs, nil
		}
		select {
		case <-n.added:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// onPodCIDRChange calls fail when the node gets pod CIDRs other than podCIDRs, because the proxier
// cannot change its own.
func (n *node) onPodCIDRChange(podCIDRs []string, fail context.CancelCauseFunc) {
	check := func(object any) {
		changed, ok := object.(*corev1.Node)
		if ok && len(changed.Spec.PodCIDRs) > 0 && !slices.Equal(changed.Spec.PodCIDRs, podCIDRs) {
			fail(fmt.Errorf("the node's pod CIDR changed from %s to %s: restart kedge",
				strings.Join(podCIDRs, ","), strings.Join(changed.Spec.PodCIDRs, ",")))
		}
	}
	// The error is ignored for the same reason as above.
	_, _ = n.informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    check,
		UpdateFunc: func(_, object any) { check(object) },
	})
}

// localDetectors returns how the proxier recognises traffic of this node's pods. It follows
// getLocalDetectors in cmd/kube-proxy/app/server_linux.go.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server_linux.go getLocalDetectors
func localDetectors(c *proxyconfig.KubeProxyConfiguration, podCIDRs []string) map[corev1.IPFamily]proxyutil.LocalTrafficDetector {
	detectors := map[corev1.IPFamily]proxyutil.LocalTrafficDetector{
		corev1.IPv4Protocol: proxyutil.NewNoOpLocalDetector(),
		corev1.IPv6Protocol: proxyutil.NewNoOpLocalDetector(),
	}
	byCIDR := func(cidrs []string) {
		for family, ofFamily := range proxyutil.MapCIDRsByIPFamily(cidrs) {
			detectors[family] = proxyutil.NewDetectLocalByCIDR(ofFamily[0].String())
		}
	}
	byInterface := func(detector proxyutil.LocalTrafficDetector) {
		detectors[corev1.IPv4Protocol], detectors[corev1.IPv6Protocol] = detector, detector
	}
	switch c.DetectLocalMode {
	case proxyconfig.LocalModeClusterCIDR:
		byCIDR(c.DetectLocal.ClusterCIDRs)
	case proxyconfig.LocalModeNodeCIDR:
		byCIDR(podCIDRs)
	case proxyconfig.LocalModeBridgeInterface:
		byInterface(proxyutil.NewDetectLocalByBridgeInterface(c.DetectLocal.BridgeInterface))
	case proxyconfig.LocalModeInterfaceNamePrefix:
		byInterface(proxyutil.NewDetectLocalByInterfaceNamePrefix(c.DetectLocal.InterfaceNamePrefix))
	}
	return detectors
}
