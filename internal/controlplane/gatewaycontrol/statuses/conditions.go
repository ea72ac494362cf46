package statuses

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
)

// Faults returns what is wrong with the objects of a result.
func Faults(r *compile.Result) (all []faults.Fault) {
	for _, s := range allOf(r) {
		for _, condition := range conditionsOf(s.now) {
			if isFault(&condition) {
				all = append(all, faults.Fault{Object: s.object, Reason: condition.Reason, Message: condition.Message})
			}
		}
	}
	return all
}

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
	case *gwv1.PolicyStatus:
		var all []metav1.Condition
		for i := range status.Ancestors {
			if status.Ancestors[i].ControllerName == compile.Controller {
				all = append(all, status.Ancestors[i].Conditions...)
			}
		}
		return all
	}
	_, parents := routeStatus(status)
	var all []metav1.Condition
	for i := range parents {
		if parents[i].ControllerName == compile.Controller {
			all = append(all, parents[i].Conditions...)
		}
	}
	return all
}

// ofListener returns conditions whose messages name their listener.
func ofListener(name gwv1.SectionName, conditions []metav1.Condition) []metav1.Condition {
	named := slices.Clone(conditions)
	for i := range named {
		named[i].Message = fmt.Sprintf("listener %s: %s", name, named[i].Message)
	}
	return named
}

// routeStatus returns what a status says about the parents of a route, and the kind of the
// route. It returns nil for other statuses.
func routeStatus(status any) (kind string, parents []gwv1.RouteParentStatus) {
	switch status := status.(type) {
	case *gwv1.HTTPRouteStatus:
		return "HTTPRoute", status.Parents
	case *gwv1.GRPCRouteStatus:
		return "GRPCRoute", status.Parents
	case *gwv1.TLSRouteStatus:
		return "TLSRoute", status.Parents
	case *gwv1.TCPRouteStatus:
		return "TCPRoute", status.Parents
	case *gwv1.UDPRouteStatus:
		return "UDPRoute", status.Parents
	}
	return "", nil
}
