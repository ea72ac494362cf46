package compile

import (
	"cmp"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// parentNotProgrammed is a reason of a listener set that the API names in its text only.
const parentNotProgrammed gwv1.ListenerSetConditionReason = "ParentNotProgrammed"

// finish makes the fronts, and writes the statuses of Gateways and listener sets. The routes
// are attached already.
func (c *compiler) finish() {
	c.fronts()
	for _, backend := range c.out.State.Backends {
		if backend.TLS != nil {
			c.serve(backend.TLS.ClientCertificate)
		}
	}
	for _, g := range c.ordered {
		c.out.Gateways[g.object] = c.gatewayStatus(g)
		for _, set := range g.sets {
			c.out.ListenerSets[set.object] = c.setStatus(g, set)
		}
	}
}

// gatewayStatus returns the status of a Gateway.
func (c *compiler) gatewayStatus(g *gateway) *gwv1.GatewayStatus {
	status, generation := g.object.Status.DeepCopy(), g.object.Generation
	set := func(kind gwv1.GatewayConditionType, wrong fault, right gwv1.GatewayConditionReason, message string) {
		status.Conditions = setOutcome(status.Conditions, generation, kind, wrong, right, message)
	}
	reason, message := gwv1.GatewayReasonAccepted, "kedge serves this Gateway"
	if invalid := invalidListeners(g.listeners); invalid != "" {
		reason, message = gwv1.GatewayReasonListenersNotValid, invalid
	}
	set(gwv1.GatewayConditionAccepted, g.rejection(), reason, message)
	set(gwv1.GatewayConditionResolvedRefs, g.unresolvedRefs(), gwv1.GatewayReasonResolvedRefs, "all references are resolved")

	status.Addresses = nil
	var unprogrammed fault
	if !g.accepted {
		unprogrammed = faultOf(gwv1.GatewayReasonInvalid, "the Gateway is not accepted: the condition Accepted says why")
	} else {
		reached := c.reachOf(g.front)
		status.Addresses = reached.addresses()
		if unprogrammed = reached.addressFault(g.addresses); !unprogrammed.is() {
			unprogrammed = reached.portFault(g.listeners)
		}
	}
	set(gwv1.GatewayConditionProgrammed, unprogrammed, gwv1.GatewayReasonProgrammed, "nodes listen on all ports")

	if allowsInsecureClients(g.object) {
		status.Conditions = setCondition(status.Conditions, generation, gwv1.GatewayConditionInsecureFrontendValidationMode,
			metav1.ConditionTrue, gwv1.GatewayReasonConfigurationChanged, "clients without a valid certificate are let in: AllowInsecureFallback is in spec.tls.frontend")
	} else {
		status.Conditions = removeCondition(status.Conditions, gwv1.GatewayConditionInsecureFrontendValidationMode)
	}

	status.Listeners = c.listenerStatuses(g, generation, g.listeners, g.object.Status.Listeners)
	attached := int32(0)
	for _, set := range g.sets {
		if set.accepted {
			attached++
		}
	}
	status.AttachedListenerSets = ptr.To(attached)
	return status
}

// rejection says why a Gateway is not accepted.
func (g *gateway) rejection() fault {
	switch {
	case g.refused.is():
		return g.refused
	case !g.accepted:
		return faultOf(gwv1.GatewayReasonListenersNotValid, "no listener can be served. %s", invalidListeners(g.listeners))
	}
	return fault{}
}

// unresolvedRefs says which references of a Gateway cannot be used.
func (g *gateway) unresolvedRefs() fault {
	if g.unresolved.is() {
		return g.unresolved
	}
	for _, l := range g.listeners {
		if l.resolved.is() {
			return faultOf(gwv1.GatewayReasonListenersNotResolved, "listener %s: %s", l.name, l.resolved.message)
		}
	}
	return fault{}
}

// invalidListeners names the listeners with a fault. It returns an empty text if there is
// none.
func invalidListeners(listeners []*listener) string {
	var texts []string
	for _, l := range listeners {
		if wrong := cmp.Or(l.accepted, l.conflict, l.resolved); wrong.is() {
			texts = append(texts, fmt.Sprintf("%s (%s)", l.name, wrong.reason))
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return "listeners with a fault, which their conditions explain: " + strings.Join(texts, ", ")
}

// allowsInsecureClients tells whether a Gateway lets clients in whose certificate is wrong.
func allowsInsecureClients(object *gwv1.Gateway) bool {
	if object.Spec.TLS == nil || object.Spec.TLS.Frontend == nil {
		return false
	}
	insecure := func(config *gwv1.TLSConfig) bool {
		return config.Validation != nil && config.Validation.Mode == gwv1.AllowInsecureFallback
	}
	frontend := object.Spec.TLS.Frontend
	for i := range frontend.PerPort {
		if insecure(&frontend.PerPort[i].TLS) {
			return true
		}
	}
	return insecure(&frontend.Default)
}

// setStatus returns the status of a listener set.
func (c *compiler) setStatus(g *gateway, set *listenerSet) *gwv1.ListenerSetStatus {
	status, generation := set.object.Status.DeepCopy(), set.object.Generation
	rejection := set.rejection(g)
	reason, message := gwv1.ListenerSetReasonAccepted, "kedge serves this ListenerSet"
	if invalid := invalidListeners(set.listeners); invalid != "" {
		reason, message = gwv1.ListenerSetReasonListenersNotValid, invalid
	}
	status.Conditions = setOutcome(status.Conditions, generation, gwv1.ListenerSetConditionAccepted, rejection, reason, message)

	unprogrammed := rejection
	if !unprogrammed.is() {
		reached := c.reachOf(g.front)
		if without := reached.addressFault(g.addresses); without.is() {
			unprogrammed = faultOf(parentNotProgrammed, "the Gateway %s is not programmed: %s", g, without.message)
		} else {
			unprogrammed = reached.portFault(set.listeners)
		}
	}
	status.Conditions = setOutcome(status.Conditions, generation, gwv1.ListenerSetConditionProgrammed, unprogrammed,
		gwv1.ListenerSetReasonProgrammed, "nodes listen on all ports")

	old := make([]gwv1.ListenerStatus, len(set.object.Status.Listeners))
	for i := range set.object.Status.Listeners {
		old[i] = gwv1.ListenerStatus(set.object.Status.Listeners[i])
	}
	status.Listeners = nil
	if !set.refused.is() {
		for _, entry := range c.listenerStatuses(g, generation, set.listeners, old) {
			status.Listeners = append(status.Listeners, gwv1.ListenerEntryStatus(entry))
		}
	}
	return status
}

// rejection says why a listener set is not accepted.
func (s *listenerSet) rejection(g *gateway) fault {
	switch {
	case s.refused.is():
		return s.refused
	case !g.accepted:
		return faultOf(gwv1.ListenerSetReasonParentNotAccepted, "the Gateway %s is not accepted: its conditions say why", g)
	case !s.accepted:
		return faultOf(gwv1.ListenerSetReasonListenersNotValid, "no listener can be served. %s", invalidListeners(s.listeners))
	}
	return fault{}
}

// listenerStatuses returns the statuses of the listeners of one object. The old ones are those
// that the object has.
func (c *compiler) listenerStatuses(g *gateway, generation int64, listeners []*listener, old []gwv1.ListenerStatus) []gwv1.ListenerStatus {
	conditions := make(map[gwv1.SectionName][]metav1.Condition, len(old))
	for i := range old {
		conditions[old[i].Name] = append([]metav1.Condition(nil), old[i].Conditions...)
	}
	statuses := make([]gwv1.ListenerStatus, 0, len(listeners))
	for _, l := range listeners {
		statuses = append(statuses, gwv1.ListenerStatus{
			Name: l.name, SupportedKinds: l.kinds, AttachedRoutes: l.attached,
			Conditions: c.listenerConditions(g, l, generation, conditions[l.name]),
		})
	}
	return statuses
}

func (c *compiler) listenerConditions(g *gateway, l *listener, generation int64, conditions []metav1.Condition) []metav1.Condition {
	set := func(kind gwv1.ListenerConditionType, wrong fault, right gwv1.ListenerConditionReason, message string) {
		conditions = setOutcome(conditions, generation, kind, wrong, right, message)
	}
	if l.conflict.is() {
		conditions = setCondition(conditions, generation, gwv1.ListenerConditionConflicted, metav1.ConditionTrue, l.conflict.reason, l.conflict.message)
	} else {
		conditions = setCondition(conditions, generation, gwv1.ListenerConditionConflicted, metav1.ConditionFalse,
			gwv1.ListenerReasonNoConflicts, "no other listener wants the same")
	}
	set(gwv1.ListenerConditionAccepted, cmp.Or(l.accepted, l.conflict), gwv1.ListenerReasonAccepted, "kedge can serve this listener")
	set(gwv1.ListenerConditionResolvedRefs, l.resolved, gwv1.ListenerReasonResolvedRefs, "all references are resolved")
	set(gwv1.ListenerConditionProgrammed, c.unprogrammed(g, l), gwv1.ListenerReasonProgrammed, "nodes listen on the port")
	if l.overlaps == "" {
		return removeCondition(conditions, gwv1.ListenerConditionOverlappingTLSConfig)
	}
	return setCondition(conditions, generation, gwv1.ListenerConditionOverlappingTLSConfig, metav1.ConditionTrue, gwv1.ListenerReasonOverlappingHostnames,
		fmt.Sprintf("host names of this listener are also those of listener %s on the same port. Requests that reach the wrong one are answered with 421", l.overlaps))
}

// unprogrammed says why clients cannot reach a listener.
func (c *compiler) unprogrammed(g *gateway, l *listener) fault {
	switch {
	case l.conflict.is():
		return l.conflict
	case !l.canServe():
		return faultOf(gwv1.ListenerReasonInvalid, "the listener cannot be served: %s", l.accepted.and(l.resolved).message)
	case !l.usable:
		return faultOf(gwv1.ListenerReasonInvalid, "the Gateway %s or the ListenerSet is not accepted: its conditions say why", g)
	}
	if l.awaits && len(l.certificates) == 0 {
		return faultOf(gwv1.ListenerReasonPending, "%s", l.resolved.message)
	}
	reached := c.reachOf(g.front)
	if len(reached.addresses()) == 0 {
		return faultOf(gwv1.ListenerReasonPending, "%s", reached.addressFault(nil).message)
	}
	return reached.portFault([]*listener{l})
}

// setOutcome sets a condition that is True unless there is a fault.
func setOutcome[T, R ~string](conditions []metav1.Condition, generation int64, kind T, wrong fault, right R, message string) []metav1.Condition {
	if wrong.is() {
		return setCondition(conditions, generation, kind, metav1.ConditionFalse, wrong.reason, wrong.message)
	}
	return setCondition(conditions, generation, kind, metav1.ConditionTrue, right, message)
}
