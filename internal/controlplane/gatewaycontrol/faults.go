package gatewaycontrol

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
)

// fault is what is wrong with an object, for an Event.
type fault struct {
	object          runtime.Object
	reason, message string
}

// key tells faults apart.
func (f fault) key() string {
	uid := ""
	if object, is := f.object.(metav1.Object); is {
		uid = string(object.GetUID())
	}
	return uid + " " + f.reason + " " + f.message
}

// faultsOf returns what is wrong with the objects of a result.
func faultsOf(newest *compiled) []fault {
	var faults []fault
	for _, s := range statusesOf(newest.gateways) {
		for _, condition := range conditionsOf(s.now) {
			if isFault(&condition) {
				faults = append(faults, fault{s.object, condition.Reason, condition.Message})
			}
		}
	}
	for _, f := range newest.ingresses.Faults {
		faults = append(faults, fault{f.Ingress, f.Reason, f.Message})
	}
	faults = append(faults, newest.hostFaults()...)
	faults = append(faults, newest.shadowed()...)
	for _, f := range newest.taken {
		message := takenMessage(&f)
		served := gatewaysOf(&f)
		for object := range newest.gateways.Gateways {
			if served[object.Namespace+"/"+object.Name] {
				faults = append(faults, fault{object, reasonTaken, message})
			}
		}
		if f.Gateway == nil {
			for object := range newest.ingresses.Served {
				faults = append(faults, fault{object, reasonTaken, message})
			}
		}
	}
	return faults
}

// reasonTaken is the reason of Events about a front whose name is taken.
const reasonTaken = "ServiceExists"

// isFault tells whether a condition says that the user has to mend something. Conditions
// about what kedge is still doing are not of that kind. Those that sum up the conditions of
// listeners would say the same again.
func isFault(condition *metav1.Condition) bool {
	switch condition.Reason {
	case string(gwv1.GatewayReasonListenersNotValid), string(gwv1.GatewayReasonListenersNotResolved):
		return false
	}
	switch condition.Type {
	case string(gwv1.GatewayConditionAccepted), string(gwv1.ListenerConditionResolvedRefs):
		return condition.Status == metav1.ConditionFalse && condition.Reason != string(gwv1.GatewayReasonPending)
	case string(gwv1.ListenerConditionConflicted), string(gwv1.RouteConditionPartiallyInvalid):
		return condition.Status == metav1.ConditionTrue
	}
	return false
}

// conditionsOf returns the conditions that kedge has written into a status.
func conditionsOf(status any) []metav1.Condition {
	switch status := status.(type) {
	case *gwv1.GatewayClassStatus:
		return status.Conditions
	case *gwv1.GatewayStatus:
		all := slices.Clone(status.Conditions)
		for i := range status.Listeners {
			all = append(all, ofListener(status.Listeners[i].Name, status.Listeners[i].Conditions)...)
		}
		return all
	case *gwv1.ListenerSetStatus:
		all := slices.Clone(status.Conditions)
		for i := range status.Listeners {
			all = append(all, ofListener(status.Listeners[i].Name, status.Listeners[i].Conditions)...)
		}
		return all
	case *gwv1.HTTPRouteStatus:
		return conditionsOfParents(status.Parents)
	case *gwv1.GRPCRouteStatus:
		return conditionsOfParents(status.Parents)
	case *gwv1.TLSRouteStatus:
		return conditionsOfParents(status.Parents)
	case *gwv1.TCPRouteStatus:
		return conditionsOfParents(status.Parents)
	case *gwv1.UDPRouteStatus:
		return conditionsOfParents(status.Parents)
	case *gwv1.PolicyStatus:
		var all []metav1.Condition
		for i := range status.Ancestors {
			if status.Ancestors[i].ControllerName == compile.Controller {
				all = append(all, status.Ancestors[i].Conditions...)
			}
		}
		return all
	}
	return nil
}

// ofListener returns conditions whose messages name their listener.
func ofListener(name gwv1.SectionName, conditions []metav1.Condition) []metav1.Condition {
	named := slices.Clone(conditions)
	for i := range named {
		named[i].Message = fmt.Sprintf("listener %s: %s", name, named[i].Message)
	}
	return named
}

func conditionsOfParents(parents []gwv1.RouteParentStatus) []metav1.Condition {
	var all []metav1.Condition
	for i := range parents {
		if parents[i].ControllerName == compile.Controller {
			all = append(all, parents[i].Conditions...)
		}
	}
	return all
}

// tell writes an Event about each fault that is new. A fault that has gone and comes again is
// new.
func (t *term) tell(faults []fault) {
	told := map[string]bool{}
	for _, f := range faults {
		key := f.key()
		if !t.told[key] && !told[key] {
			t.events().Event(f.object, corev1.EventTypeWarning, f.reason, events.Message(f.message))
		}
		told[key] = true
	}
	t.told = told
}
