package kubelet

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/kedge-dev/kedge/internal/base/component"
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

// addressedClient is the kubelet's client. It registers the node with addresses, if it is not
// registered yet. It must be used by pointer, because BuildAuth in cmd/kubelet/app/auth.go accepts nothing else.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/auth.go BuildAuth
type addressedClient struct {
	kubernetes.Interface
	addresses []corev1.NodeAddress
}

// CoreV1 implements kubernetes.Interface.
func (c *addressedClient) CoreV1() typedcorev1.CoreV1Interface {
	return addressedCoreV1{c.Interface.CoreV1(), c.addresses}
}

type addressedCoreV1 struct {
	typedcorev1.CoreV1Interface
	addresses []corev1.NodeAddress
}

// Nodes implements typedcorev1.CoreV1Interface.
func (c addressedCoreV1) Nodes() typedcorev1.NodeInterface {
	return addressedNodes{c.CoreV1Interface.Nodes(), c.addresses}
}

type addressedNodes struct {
	typedcorev1.NodeInterface
	addresses []corev1.NodeAddress
}

// registrationFault says why a node could not be registered, and what to do. It is nil if the node is
// registered.
func registrationFault(name string, err error) error {
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("register node %s: %w. If a webhook or a policy of the cluster refuses the node, repair it, or delete its configuration", name, err)
}

// Create implements typedcorev1.NodeInterface. It does not ask for a Node that exists: the kubelet
// creates its Node at each start, and takes the answer that it exists for a success. Webhooks and
// policies come before that answer, and one that fails would keep the node from starting.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go Kubelet.tryRegisterWithAPIServer
func (n addressedNodes) Create(ctx context.Context, node *corev1.Node, options metav1.CreateOptions) (*corev1.Node, error) {
	if _, err := n.NodeInterface.Get(ctx, node.Name, metav1.GetOptions{}); err == nil {
		return nil, apierrors.NewAlreadyExists(corev1.Resource("nodes"), node.Name)
	}
	node = node.DeepCopy()
	node.Status.Addresses = n.addresses
	node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
		return taint.Key == cloudproviderapi.TaintExternalCloudProvider
	})
	made, err := n.NodeInterface.Create(ctx, node, options)
	// The kubelet tries again, and tells only its log.
	component.Report(ctx, registrationFault(node.Name, err))
	return made, err
}
