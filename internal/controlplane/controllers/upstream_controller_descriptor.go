// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/controller_descriptor.go.

package controllers

import (
	"context"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// buildInstead is upstream's ControllerDescriptor.BuildController with another
// constructor. It returns nil if a feature gate has turned the controller off.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/controller_descriptor.go ControllerDescriptor.BuildController
func buildInstead(ctx context.Context, controllerContext app.ControllerContext, descriptor *app.ControllerDescriptor, build constructor) (app.Controller, error) {
	for _, gate := range descriptor.GetRequiredFeatureGates() {
		if !utilfeature.DefaultFeatureGate.Enabled(gate) {
			return nil, nil
		}
	}
	return build(klog.NewContext(ctx, klog.FromContext(ctx).WithName(descriptor.Name())), controllerContext)
}
