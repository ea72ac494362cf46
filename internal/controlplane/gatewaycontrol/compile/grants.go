package compile

import (
	"slices"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// grantsByNamespace sorts grants by the namespace that they open.
func grantsByNamespace(grants []*gwv1.ReferenceGrant) map[string][]*gwv1.ReferenceGrant {
	found := make(map[string][]*gwv1.ReferenceGrant)
	for _, grant := range grants {
		found[grant.Namespace] = append(found[grant.Namespace], grant)
	}
	return found
}

// granted tells whether an object may refer to another one. A reference within a namespace
// is always granted. A reference into another namespace needs a ReferenceGrant there. The
// group of the core API is empty.
func (c *compiler) granted(fromGroup, fromKind, fromNamespace, toGroup, toKind, toNamespace, toName string) bool {
	if fromNamespace == toNamespace {
		return true
	}
	trusts := func(from gwv1.ReferenceGrantFrom) bool {
		return string(from.Group) == fromGroup && string(from.Kind) == fromKind && string(from.Namespace) == fromNamespace
	}
	opens := func(to gwv1.ReferenceGrantTo) bool {
		return string(to.Group) == toGroup && string(to.Kind) == toKind && (to.Name == nil || *to.Name == "" || string(*to.Name) == toName)
	}
	return slices.ContainsFunc(c.grants[toNamespace], func(grant *gwv1.ReferenceGrant) bool {
		return slices.ContainsFunc(grant.Spec.From, trusts) && slices.ContainsFunc(grant.Spec.To, opens)
	})
}
