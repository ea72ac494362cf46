package restriction

import (
	"errors"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// checkAddress limits a node to the Leases of addresses that it may hold. The node may
// take and release such a Lease, and change nothing else in it. All other Leases in the
// namespace, such as the one that elects a server, are not for nodes.
//
// A node that may hold an address can take it from another one at any time. kedge could not
// prevent that: the node is in the network of the address, and could announce it anyway.
func (p *plugin) checkAddress(a admission.Attributes, o admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Update || a.GetNamespace() != servicelb.Namespace || a.GetSubresource() != "" {
		return admission.NewForbidden(a, errors.New("a node may only update Leases of addresses in "+servicelb.Namespace))
	}
	before, err := versioned[*coordinationv1.Lease](a.GetOldObject(), o, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	now, err := versioned[*coordinationv1.Lease](a.GetObject(), o, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	if _, is := before.Labels[servicelb.LeaseLabel]; !is {
		return admission.NewForbidden(a, errors.New("this Lease is not one of an address"))
	}
	if !equality.Semantic.DeepEqual(before.Labels, now.Labels) || !equality.Semantic.DeepEqual(before.Annotations, now.Annotations) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, now.OwnerReferences) || !equality.Semantic.DeepEqual(before.Finalizers, now.Finalizers) {
		return admission.NewForbidden(a, errors.New("a node may change only the holder of a Lease of an address, and its times"))
	}
	own, had, has := nodesOf(a.GetUserInfo()), ptr.Deref(before.Spec.HolderIdentity, ""), ptr.Deref(now.Spec.HolderIdentity, "")
	takes := slices.Contains(own, has) && servicelb.MayHold(before.Annotations, has)
	releases := has == "" && slices.Contains(own, had)
	if !takes && !releases {
		return admission.NewForbidden(a, errors.New("this node may not hold this address"))
	}
	return nil
}
