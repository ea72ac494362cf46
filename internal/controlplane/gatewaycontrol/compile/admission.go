package compile

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// admission says which namespaces may attach something. Its zero value admits none.
type admission struct {
	from gwv1.FromNamespaces
	// same is the namespace that NamespacesFromSame means.
	same     string
	selector labels.Selector
}

// newAdmission returns the admission that a user has written. It fails if the selector is
// wrong. Then it admits none.
func newAdmission(same string, from *gwv1.FromNamespaces, otherwise gwv1.FromNamespaces, selector *metav1.LabelSelector) (admission, error) {
	a := admission{from: ptr.Deref(from, otherwise), same: same}
	if a.from != gwv1.NamespacesFromSelector {
		return a, nil
	}
	var err error
	if a.selector, err = metav1.LabelSelectorAsSelector(selector); err != nil {
		return admission{}, err
	}
	return a, nil
}

// admits tells whether a namespace is admitted. A namespace that does not exist is not.
func (a admission) admits(namespace *corev1.Namespace) bool {
	if namespace == nil {
		return false
	}
	switch a.from {
	case gwv1.NamespacesFromAll:
		return true
	case gwv1.NamespacesFromSame:
		return namespace.Name == a.same
	case gwv1.NamespacesFromSelector:
		return a.selector.Matches(labels.Set(namespace.Labels))
	}
	return false
}
