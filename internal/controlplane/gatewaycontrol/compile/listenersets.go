package compile

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// listenerSet is a ListenerSet that names one of kedge's Gateways.
type listenerSet struct {
	object    *gwv1.ListenerSet
	listeners []*listener
	// refused says why the listener set is not accepted, other than for its listeners.
	refused fault
	// accepted says that at least one listener is served.
	accepted bool
}

// setsByGateway sorts the listener sets by the Gateway that they name, older ones first.
func (c *compiler) setsByGateway() map[types.NamespacedName][]*gwv1.ListenerSet {
	found := make(map[types.NamespacedName][]*gwv1.ListenerSet)
	for _, set := range byAge(c.in.ListenerSets) {
		ref := &set.Spec.ParentRef
		if ptr.Deref(ref.Group, gwv1.GroupName) != gwv1.GroupName || ptr.Deref(ref.Kind, "Gateway") != "Gateway" {
			continue
		}
		name := types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gwv1.Namespace(set.Namespace))), Name: string(ref.Name)}
		found[name] = append(found[name], set)
	}
	return found
}

// newListenerSets reads the listener sets of a Gateway.
func (c *compiler) newListenerSets(g *gateway, objects []*gwv1.ListenerSet) []*listenerSet {
	if len(objects) == 0 {
		return nil
	}
	allowed := ptr.Deref(ptr.Deref(g.object.Spec.AllowedListeners, gwv1.AllowedListeners{}).Namespaces, gwv1.ListenerNamespaces{})
	admission, err := newAdmission(g.object.Namespace, allowed.From, gwv1.NamespacesFromNone, allowed.Selector)
	var sets []*listenerSet
	for _, object := range objects {
		set := &listenerSet{object: object}
		switch {
		case err != nil:
			set.refused = faultOf(gwv1.ListenerSetReasonNotAllowed, "read spec.allowedListeners.namespaces.selector of the Gateway %s: %v", g, err)
		case !admission.admits(c.in.Namespace(object.Namespace)):
			set.refused = faultOf(gwv1.ListenerSetReasonNotAllowed, "spec.allowedListeners of the Gateway %s does not allow the namespace %s", g, object.Namespace)
		}
		for i := range object.Spec.Listeners {
			spec := (*gwv1.Listener)(&object.Spec.Listeners[i])
			if set.refused.is() {
				// Such a listener admits no route. What it refers to is not read.
				set.listeners = append(set.listeners, &listener{
					gateway: g.object, set: object, name: spec.Name, port: spec.Port, protocol: spec.Protocol,
				})
				continue
			}
			set.listeners = append(set.listeners, c.newListener(g, object, spec))
		}
		sets = append(sets, set)
	}
	return sets
}
