package essential

import (
	"maps"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

const (
	// nodeUser begins the name of a kubelet's user.
	nodeUser = "system:node:"
	// nodeLeases is the namespace of the signs of life of nodes.
	nodeLeases = "kube-node-lease"
	// supervisor and flannel are users of kedge's own parts.
	supervisor = "system:kedge:supervisor"
	flannel    = "system:kedge:flannel"
	// flannelPrefix begins the annotations of a Node that are flannel's.
	flannelPrefix = "flannel.alpha.coreos.com/"
	// tokenLife is the life in seconds of the token that every pod has.
	tokenLife = serviceaccount.WarnOnlyBoundTokenExpirationSeconds
)

// ofServer tells whether a write is the registration of a node. A server without an API
// server sends its own to another server, and no node has a certificate of this user.
func ofServer(a admission.Attributes) bool {
	if a.GetUserInfo().GetName() != supervisor || a.GetResource().GroupResource() != secrets || a.GetNamespace() != metav1.NamespaceSystem {
		return false
	}
	for _, object := range []runtime.Object{a.GetObject(), a.GetOldObject()} {
		if secret, is := object.(*core.Secret); is && string(secret.Type) != registration.SecretType {
			return false
		}
	}
	return true
}

// ofNode tells whether a write of a node, whose certificate an attacker may have, is
// essential. A write for which ofNode returns true must be harmless even if every rule of users
// forbids it. It must also be allowed by kedge's own policy in /manifests/nodes.yaml, which is passed by
// with the others.
func ofNode(who user.Info, a admission.Attributes, audiences []string) bool {
	name, kubelet := strings.CutPrefix(who.GetName(), nodeUser)
	resource := a.GetResource().GroupResource()
	switch {
	case who.GetName() == flannel:
		return resource == nodes && slices.Contains(who.GetGroups(), pki.NodeGroup(a.GetName())) && annotates(a)
	case !kubelet, !slices.Contains(who.GetGroups(), user.NodesGroup):
		return false
	}
	switch resource {
	case leases:
		return a.GetNamespace() == nodeLeases && a.GetName() == name && a.GetOperation() != admission.Delete
	case csiNodes:
		return a.GetName() == name && a.GetOperation() != admission.Delete
	case nodes:
		return a.GetName() == name && a.GetSubresource() == "status" && tellsHealth(a)
	case tokenReviews, accessReviews:
		return true // Questions: nothing is written.
	case pods:
		return a.GetSubresource() == "status" && tellsOfPod(a)
	case serviceAccounts:
		return a.GetSubresource() == "token" && ordinary(a, audiences)
	}
	return false
}

// tellsHealth tells whether an update of a Node changes only what the node alone can know
// of itself: its conditions, versions, images, addresses, and its own resources. A resource
// of a device plugin may only become less.
func tellsHealth(a admission.Attributes) bool {
	before, was := a.GetOldObject().(*core.Node)
	now, is := a.GetObject().(*core.Node)
	if !was || !is || a.GetOperation() != admission.Update || !sameMeta(&before.ObjectMeta, &now.ObjectMeta) ||
		!apiequality.Semantic.DeepEqual(before.Spec, now.Spec) {
		return false
	}
	for _, address := range now.Status.Addresses {
		// As in /manifests/nodes.yaml.
		own := address.Type == core.NodeInternalIP || address.Type == core.NodeExternalIP || address.Address == now.Name
		if !own && !slices.Contains(before.Status.Addresses, address) {
			return false
		}
	}
	return !extends(before.Status.Capacity, now.Status.Capacity) && !extends(before.Status.Allocatable, now.Status.Allocatable)
}

// extends tells whether there is more of a resource than before that is not of Kubernetes
// itself.
func extends(before, now core.ResourceList) bool {
	for name, amount := range now {
		if had := before[name]; strings.Contains(string(name), "/") && amount.Cmp(had) > 0 {
			return true
		}
	}
	return false
}

// tellsOfPod tells whether an update changes only the status of a pod. Upstream's plugin
// NodeRestriction makes sure that the pod is the node's.
func tellsOfPod(a admission.Attributes) bool {
	before, was := a.GetOldObject().(*core.Pod)
	now, is := a.GetObject().(*core.Pod)
	return was && is && a.GetOperation() == admission.Update && sameMeta(&before.ObjectMeta, &now.ObjectMeta) &&
		apiequality.Semantic.DeepEqual(before.Spec, now.Spec)
}

// ordinary tells whether a token is of the kind that every pod has: for the API, bound to
// a pod, and for an hour. The API server writes the audiences of the API into a request before
// it asks the validating plugins (kubernetes/pkg/registry/core/serviceaccount/storage/token.go,
// Create).
func ordinary(a admission.Attributes, audiences []string) bool {
	request, is := a.GetObject().(*authentication.TokenRequest)
	return is && (len(request.Spec.Audiences) == 0 || slices.Equal(request.Spec.Audiences, audiences)) && request.Spec.BoundObjectRef != nil && request.Spec.BoundObjectRef.Kind == "Pod" &&
		request.Spec.ExpirationSeconds <= tokenLife
}

// annotates tells whether an update changes only flannel's annotations.
func annotates(a admission.Attributes) bool {
	before, was := a.GetOldObject().(*core.Node)
	now, is := a.GetObject().(*core.Node)
	if !was || !is || a.GetOperation() != admission.Update {
		return false
	}
	others := func(node *core.Node) *metav1.ObjectMeta {
		described := node.ObjectMeta.DeepCopy()
		maps.DeleteFunc(described.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, flannelPrefix) })
		return described
	}
	return sameMeta(others(before), others(now)) && apiequality.Semantic.DeepEqual(before.Spec, now.Spec) &&
		apiequality.Semantic.DeepEqual(before.Status, now.Status)
}

// sameMeta tells whether two descriptions of an object are equal, except for what the API
// server writes itself at each update.
func sameMeta(before, now *metav1.ObjectMeta) bool {
	strip := func(described *metav1.ObjectMeta) *metav1.ObjectMeta {
		stripped := described.DeepCopy()
		stripped.ManagedFields, stripped.ResourceVersion, stripped.Generation = nil, "", 0
		return stripped
	}
	return apiequality.Semantic.DeepEqual(strip(before), strip(now))
}
