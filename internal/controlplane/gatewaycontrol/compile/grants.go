package compile

import (
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
	for _, grant := range c.grants[toNamespace] {
		if grantsFrom(grant.Spec.From, fromGroup, fromKind, fromNamespace) && grantsTo(grant.Spec.To, toGroup, toKind, toName) {
			return true
		}
	}
	return false
}

func grantsFrom(trusted []gwv1.ReferenceGrantFrom, group, kind, namespace string) bool {
	for i := range trusted {
		from := &trusted[i]
		if string(from.Group) == group && string(from.Kind) == kind && string(from.Namespace) == namespace {
			return true
		}
	}
	return false
}

func grantsTo(opened []gwv1.ReferenceGrantTo, group, kind, name string) bool {
	for i := range opened {
		to := &opened[i]
		if string(to.Group) == group && string(to.Kind) == kind && (to.Name == nil || *to.Name == "" || string(*to.Name) == name) {
			return true
		}
	}
	return false
}
