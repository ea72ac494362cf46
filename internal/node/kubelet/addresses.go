package kubelet

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
)

// externalProvider tells the kubelet that somebody else sets its node's addresses
// (k8s.io/cloud-provider, IsExternal).
//
//upstream:relies-on k8s.io/cloud-provider/plugins.go IsExternal
const externalProvider = "external"

// The kubelet does not know external addresses. At each heartbeat it overwrites the addresses in
// the node's status, unless a cloud's controller sets them (NodeAddress in
// pkg/kubelet/nodestatus/setters.go). So kedge tells the kubelet that there is such a controller,
// and does its work here: it registers the node with all its addresses, and without the taint that
// keeps pods away until the addresses are known (initialNode in pkg/kubelet/kubelet_node_status.go).

// nodeAddresses returns the addresses for the node's status.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/nodestatus/setters.go NodeAddress
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go Kubelet.initialNode
func (k *Kubelet) nodeAddresses() []corev1.NodeAddress {
	var all []corev1.NodeAddress
	for _, ip := range k.cfg.NodeIPs {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	for _, ip := range k.cfg.ExternalIPs {
		all = append(all, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip.String()})
	}
	return append(all, corev1.NodeAddress{Type: corev1.NodeHostName, Address: k.cfg.NodeName})
}

// correctAddresses makes sure that the status of a node that an earlier start registered has the
// right addresses. It returns false if the node does not exist or could not be corrected.
func (k *Kubelet) correctAddresses(ctx context.Context, client kubernetes.Interface) bool {
	node, err := client.CoreV1().Nodes().Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	if slices.Equal(node.Status.Addresses, k.nodeAddresses()) {
		return true
	}
	corrected := node.DeepCopy()
	corrected.Status.Addresses = k.nodeAddresses()
	_, _, err = nodeutil.PatchNodeStatus(client.CoreV1(), types.NodeName(node.Name), node, corrected)
	// A node that may not patch its status now never may. It works without the addresses.
	return err == nil || apierrors.IsForbidden(err)
}
