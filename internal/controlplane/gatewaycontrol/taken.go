package gatewaycontrol

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// yield finds fronts whose names are taken: somebody else has a Service of the name. kedge
// does not touch such a Service, and the statuses of the Gateways say so.
func (c *compiled) yield(service func(types.NamespacedName) *corev1.Service) {
	for _, f := range c.fronts {
		if of := service(f.Name); of == nil || front.IsFront(of) || !f.Serves() {
			continue
		}
		c.taken = append(c.taken, f)
		served := gatewaysOf(&f)
		for gateway, status := range c.gateways.Gateways {
			if served[gateway.Namespace+"/"+gateway.Name] {
				refuse(gateway, status, takenMessage(&f))
			}
		}
	}
}

// takenMessage says what is wrong with a front whose name is taken, and what to do.
func takenMessage(f *front.Front) string {
	return fmt.Sprintf("kedge needs a Service of the name %s, and there is one that kedge has not made. Rename or delete it: "+
		"`kubectl delete service --namespace %s %s`", f.Name, f.Name.Namespace, f.Name.Name)
}

// gatewaysOf returns NAMESPACE/NAME of the Gateways behind a front. Names of listeners begin
// with that.
func gatewaysOf(f *front.Front) map[string]bool {
	names := map[string]bool{}
	if f.Gateway != nil {
		names[f.Gateway.Namespace+"/"+f.Gateway.Name] = true
		return names
	}
	for _, port := range f.Ports {
		for _, listener := range port.Listeners {
			if parts := strings.SplitN(listener.Name, "/", 3); len(parts) == 3 {
				names[parts[0]+"/"+parts[1]] = true
			}
		}
	}
	return names
}

// refuse says in a status that a Gateway has no addresses. The time of the condition is zero
// if its status has changed.
func refuse(gateway *gwv1.Gateway, status *gwv1.GatewayStatus, message string) {
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
