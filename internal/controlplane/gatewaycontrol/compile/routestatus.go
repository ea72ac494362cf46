package compile

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// maxParents is how many parents the status of a route may have.
const maxParents = 32

// parentStatus returns what the status of a route says about one of its parents. except says which
// host names of an accepted route are not served, or is empty.
func (r *route) parentStatus(ref *gwv1.ParentReference, refusal fault, except string, t *translation) gwv1.RouteParentStatus {
	generation := r.object.GetGeneration()
	message := "The route is attached."
	if except != "" {
		message = "The route is attached, but not for all of its hosts: " + except
	}
	conditions := setOutcome(r.conditions(ref), generation, gwv1.RouteConditionAccepted, refusal, gwv1.RouteReasonAccepted, message)
	conditions = setOutcome(conditions, generation, gwv1.RouteConditionResolvedRefs, t.unresolved.fault(),
		gwv1.RouteReasonResolvedRefs, "All references are resolved.")
	if dropped := t.dropped.fault(); dropped.is() && !refusal.is() {
		conditions = setCondition(conditions, generation, gwv1.RouteConditionPartiallyInvalid, metav1.ConditionTrue,
			dropped.reason, "Dropped Rule: "+dropped.message)
	} else {
		conditions = removeCondition(conditions, gwv1.RouteConditionPartiallyInvalid)
	}
	return gwv1.RouteParentStatus{ParentRef: *ref.DeepCopy(), ControllerName: Controller, Conditions: conditions}
}

// conditions returns a copy of the conditions that the status already has for a parent.
func (r *route) conditions(ref *gwv1.ParentReference) []metav1.Condition {
	for i := range r.status {
		if r.status[i].ControllerName == Controller && sameParent(&r.status[i].ParentRef, ref, r.object.GetNamespace()) {
			return slices.Clone(r.status[i].Conditions)
		}
	}
	return nil
}

// sameParent tells whether two references of a route mean the same.
func sameParent(a, b *gwv1.ParentReference, namespace string) bool {
	return ptr.Deref(a.Group, gwv1.GroupName) == ptr.Deref(b.Group, gwv1.GroupName) &&
		parentOf(a, namespace) == parentOf(b, namespace) &&
		ptr.Equal(a.SectionName, b.SectionName) && ptr.Equal(a.Port, b.Port)
}

// reportStatus reports the status with what other controllers say, and with kedge's own part.
// A route that is and was none of kedge's business has no new status.
func (r *route) reportStatus(own []gwv1.RouteParentStatus) {
	mentioned := false
	parents := []gwv1.RouteParentStatus{}
	for i := range r.status {
		if r.status[i].ControllerName == Controller {
			mentioned = true
			continue
		}
		parents = append(parents, *r.status[i].DeepCopy())
	}
	if len(own) == 0 && !mentioned {
		return
	}
	parents = append(parents, own...)
	if len(parents) > maxParents {
		parents = parents[:maxParents] // the API server takes no more
	}
	r.report(gwv1.RouteStatus{Parents: parents})
}
