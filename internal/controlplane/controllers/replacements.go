package controllers

import (
	"context"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// buildOwn builds the controllers that kedge puts in place of upstream's, and
// removes upstream's from descriptors.
func (m *Manager) buildOwn(ctx context.Context, controllerContext app.ControllerContext, descriptors map[string]*app.ControllerDescriptor) ([]app.Controller, error) {
	// Upstream's descriptor of the token controller has a nil client, in fields that
	// kedge cannot set (controller_descriptor.go, NewControllerDescriptors).
	//upstream:relies-on k8s.io/kubernetes/cmd/kube-controller-manager/app/controller_descriptor.go NewControllerDescriptors
	delete(descriptors, names.ServiceAccountTokenController)
	tokens, err := newTokenController(ctx, m.api, controllerContext)
	if err != nil {
		return nil, err
	}
	controllers := []app.Controller{tokens}
	for name, build := range map[string]constructor{
		names.ValidatingAdmissionPolicyStatusController: newPolicyStatusController,
		names.PersistentVolumeAttachDetachController:    m.csi.newAttachDetachController,
		names.SELinuxWarningController:                  m.csi.newSELinuxWarningController,
	} {
		descriptor := descriptors[name]
		delete(descriptors, name)
		if !controllerContext.IsControllerEnabled(descriptor) {
			continue
		}
		controller, err := buildInstead(ctx, controllerContext, descriptor, build)
		if err != nil {
			return nil, err
		}
		if controller == nil {
			continue
		}
		controllers = append(controllers, controller)
	}
	return controllers, nil
}

// constructor builds a controller. Upstream's have the controller's name too.
type constructor func(context.Context, app.ControllerContext) (app.Controller, error)

// loop is a controller that kedge has built.
type loop struct {
	name string
	run  func(ctx context.Context)
}

func (l loop) Name() string            { return l.name }
func (l loop) Run(ctx context.Context) { l.run(ctx) }
