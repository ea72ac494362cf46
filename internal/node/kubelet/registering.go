package kubelet

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// kubeletClient is the kubelet's client. It registers the node, if it is not registered yet: with
// addresses, unless they are nil. The kubelet's informer of Services gets the objects of the process's
// cache, which the kubelet only reads, unless informers is nil. The client must be used by pointer,
// because BuildAuth in cmd/kubelet/app/auth.go accepts nothing else.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/auth.go BuildAuth
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_pods.go Kubelet.getServiceEnvVarMap
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/envvars/envvars.go FromServices makeLinkVariables
type kubeletClient struct {
	kubernetes.Interface
	addresses []corev1.NodeAddress
	informers objectcache.Source
}

// CoreV1 implements kubernetes.Interface.
func (c *kubeletClient) CoreV1() typedcorev1.CoreV1Interface {
	return kubeletCoreV1{c.Interface.CoreV1(), c}
}

type kubeletCoreV1 struct {
	typedcorev1.CoreV1Interface
	client *kubeletClient
}

// Nodes implements typedcorev1.CoreV1Interface.
func (c kubeletCoreV1) Nodes() typedcorev1.NodeInterface {
	return registeringNodes{c.CoreV1Interface.Nodes(), c.client.addresses}
}

// Services implements typedcorev1.CoreV1Interface.
func (c kubeletCoreV1) Services(namespace string) typedcorev1.ServiceInterface {
	services := c.CoreV1Interface.Services(namespace)
	if c.client.informers == nil {
		return services
	}
	return objectcache.ShareServices(services, c.client.informers, namespace)
}

type registeringNodes struct {
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
func (n registeringNodes) Create(ctx context.Context, node *corev1.Node, options metav1.CreateOptions) (*corev1.Node, error) {
	if _, err := n.NodeInterface.Get(ctx, node.Name, metav1.GetOptions{}); err == nil {
		// Also if the answer to an earlier attempt was lost.
		component.Report(ctx, nil)
		return nil, apierrors.NewAlreadyExists(corev1.Resource("nodes"), node.Name)
	}
	if n.addresses != nil {
		node = node.DeepCopy()
		node.Status.Addresses = n.addresses
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Key == cloudproviderapi.TaintExternalCloudProvider
		})
	}
	made, err := n.NodeInterface.Create(ctx, node, options)
	// The kubelet tries again, and tells only its log.
	component.Report(ctx, registrationFault(node.Name, err))
	return made, err
}
