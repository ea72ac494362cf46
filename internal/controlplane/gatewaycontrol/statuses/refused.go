package statuses

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
)

// RefuseRoutes says in the statuses of routes that nodes do not serve them. reasons says why, by
// KIND/NAMESPACE/NAME.
func RefuseRoutes(r *compile.Result, reasons map[string]string) {
	for _, s := range allOf(r) {
		kind, parents := routeStatus(s.now)
		if parents == nil {
			continue
		}
		why, refused := reasons[kind+"/"+s.object.GetNamespace()+"/"+s.object.GetName()]
		if !refused {
			continue
		}
		for i := range parents {
			if parents[i].ControllerName == compile.Controller {
				meta.SetStatusCondition(&parents[i].Conditions, metav1.Condition{
					Type: string(gwv1.RouteConditionAccepted), Status: metav1.ConditionFalse, ObservedGeneration: s.object.GetGeneration(),
					Reason: string(gwv1.RouteReasonUnsupportedValue), Message: "Nodes do not serve the route: " + why,
				})
			}
		}
	}
}

// WithoutAddresses says in a status that a Gateway has no addresses. The time of the condition is
// zero if its status has changed.
func WithoutAddresses(gateway *gwv1.Gateway, status *gwv1.GatewayStatus, message string) {
	status.Addresses = nil
	condition := metav1.Condition{
		Type: string(gwv1.GatewayConditionProgrammed), Status: metav1.ConditionFalse, ObservedGeneration: gateway.Generation,
		Reason: string(gwv1.GatewayReasonAddressNotAssigned), Message: message,
	}
	if before := meta.FindStatusCondition(gateway.Status.Conditions, condition.Type); before != nil && before.Status == condition.Status {
		condition.LastTransitionTime = before.LastTransitionTime
	}
	status.Conditions = append(slices.DeleteFunc(slices.Clone(status.Conditions), func(c metav1.Condition) bool {
		return c.Type == condition.Type
	}), condition)
}
