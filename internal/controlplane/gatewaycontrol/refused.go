package gatewaycontrol

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/ingress"
)

// refuseRoutes says in the statuses of routes, and about Ingresses, that nodes do not serve them.
// reasons says why, by KIND/NAMESPACE/NAME.
func (c *compiled) refuseRoutes(reasons map[string]string) {
	for _, s := range statusesOf(c.gateways) {
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
	for object := range c.ingresses.Served {
		if why, refused := reasons["Ingress/"+object.Namespace+"/"+object.Name]; refused {
			c.ingresses.Faults = append(c.ingresses.Faults, ingress.Fault{
				Ingress: object, Reason: ingress.ReasonNotServed, Message: "Nodes do not serve the Ingress: " + why,
			})
		}
	}
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
