package compile

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// maxAncestors is how many ancestors the status of a policy may have.
const maxAncestors = 16

// reportPolicies says in the status of each policy what became of it: for each Gateway whose
// routes have a target of the policy as their backend.
func (c *compiler) reportPolicies() {
	for _, policy := range c.backendTLS.all {
		c.reportPolicy(policy)
	}
}

func (c *compiler) reportPolicy(policy *backendPolicy) {
	mentioned := false
	ancestors := []gwv1.PolicyAncestorStatus{}
	for i := range policy.object.Status.Ancestors {
		ancestor := &policy.object.Status.Ancestors[i]
		if ancestor.ControllerName == Controller {
			mentioned = true
			continue
		}
		ancestors = append(ancestors, *ancestor.DeepCopy())
	}
	verdicts := c.verdicts(policy)
	if len(verdicts) == 0 && !mentioned {
		return
	}
	gateways := slices.SortedFunc(maps.Keys(verdicts), func(a, b *gwv1.Gateway) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, gateway := range gateways {
		if len(ancestors) == maxAncestors {
			break // the API server takes no more
		}
		ancestors = append(ancestors, policy.ancestorStatus(gateway, verdicts[gateway]))
	}
	c.out.Policies[policy.object] = &gwv1.PolicyStatus{Ancestors: ancestors}
}

// verdicts returns the Gateways that a policy matters to, each with what keeps the policy from
// being used there. A policy with several targets is used if it is for one of them.
func (c *compiler) verdicts(policy *backendPolicy) map[*gwv1.Gateway]fault {
	found := map[*gwv1.Gateway]fault{}
	for _, target := range policy.targets {
		gateways, verdict := c.users(target)
		if first := c.backendTLS.first[target]; !verdict.is() && first != policy {
			verdict = faultOf(gwv1.PolicyReasonConflicted, "the BackendTLSPolicy %s, which takes precedence, is for the same", first.object.Name)
		}
		for gateway := range gateways {
			if earlier, known := found[gateway]; !known || earlier.is() && !verdict.is() {
				found[gateway] = verdict
			}
		}
	}
	return found
}

// users returns the Gateways whose routes use a target. If the target is a port that the Service
// does not have, these are the Gateways that use the Service, so that somebody can say so.
func (c *compiler) users(target policyTarget) (map[*gwv1.Gateway]bool, fault) {
	ports := c.backendTLS.users[target.service]
	if target.port != "" && c.hasPort(target.service, target.port) {
		return ports[target.port], fault{}
	}
	all := map[*gwv1.Gateway]bool{}
	for _, gateways := range ports {
		maps.Copy(all, gateways)
	}
	if target.port == "" {
		return all, fault{}
	}
	return all, faultOf(gwv1.PolicyReasonTargetNotFound, "Service %s has no port with the name %s", target.service, target.port)
}

// hasPort tells whether a Service has a port with a name.
func (c *compiler) hasPort(name types.NamespacedName, port string) bool {
	service := c.in.Service(name.Namespace, name.Name)
	return service != nil && slices.ContainsFunc(service.Spec.Ports, func(known corev1.ServicePort) bool { return known.Name == port })
}

// ancestorStatus returns what the status of a policy says about a Gateway.
func (p *backendPolicy) ancestorStatus(gateway *gwv1.Gateway, verdict fault) gwv1.PolicyAncestorStatus {
	ref := gwv1.ParentReference{
		Group: ptr.To[gwv1.Group](gwv1.GroupName), Kind: ptr.To[gwv1.Kind]("Gateway"),
		Namespace: ptr.To(gwv1.Namespace(gateway.Namespace)), Name: gwv1.ObjectName(gateway.Name),
	}
	var conditions []metav1.Condition
	for i := range p.object.Status.Ancestors {
		ancestor := &p.object.Status.Ancestors[i]
		if ancestor.ControllerName == Controller && sameParent(&ancestor.AncestorRef, &ref, p.object.Namespace) {
			conditions = slices.Clone(ancestor.Conditions)
		}
	}
	if !verdict.is() {
		verdict = p.accepted
	}
	message := "The policy is used."
	if len(p.object.Spec.Options) > 0 {
		message += " kedge has no options for it: spec.options is ignored."
	}
	conditions = setOutcome(conditions, p.object.Generation, gwv1.PolicyConditionAccepted, verdict, gwv1.PolicyReasonAccepted, message)
	conditions = setOutcome(conditions, p.object.Generation, gwv1.BackendTLSPolicyConditionResolvedRefs, p.resolved,
		gwv1.BackendTLSPolicyReasonResolvedRefs, "All references are resolved.")
	return gwv1.PolicyAncestorStatus{AncestorRef: ref, ControllerName: Controller, Conditions: conditions}
}
