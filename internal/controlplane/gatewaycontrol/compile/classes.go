package compile

import (
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// classes writes the statuses of kedge's GatewayClasses.
func (c *compiler) classes() {
	for _, class := range c.in.Classes {
		if class.Spec.ControllerName != Controller {
			continue
		}
		status := class.Status.DeepCopy()
		accepted := fault{reason: string(gwv1.GatewayClassReasonAccepted), message: "kedge serves Gateways of this class"}
		if class.Spec.ParametersRef != nil {
			accepted = faultOf(gwv1.GatewayClassReasonInvalidParameters, "kedge has no parameters for classes: remove spec.parametersRef")
		}
		status.Conditions = setCondition(status.Conditions, class.Generation, gwv1.GatewayClassConditionStatusAccepted,
			statusOf(class.Spec.ParametersRef == nil), accepted.reason, accepted.message)
		status.SupportedFeatures = supportedFeatures()
		c.out.Classes[class] = status
	}
}
