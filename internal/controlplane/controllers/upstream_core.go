// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/core.go.

package controllers

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	"k8s.io/kubernetes/pkg/controller/volume/selinuxwarning"
)

// newAttachDetachController is upstream's newPersistentVolumeAttachDetachController with
// kedge's plugin.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/core.go newPersistentVolumeAttachDetachController
func (p *csiPlugin) newAttachDetachController(ctx context.Context, controllerContext app.ControllerContext) (app.Controller, error) {
	name := names.PersistentVolumeAttachDetachController
	volumes, config := controllerContext.ComponentConfig.PersistentVolumeBinderController.VolumeConfiguration, controllerContext.ComponentConfig.AttachDetachController
	plugins, err := app.ProbeAttachableVolumePlugins(klog.FromContext(ctx), volumes)
	if err != nil {
		return nil, fmt.Errorf("find volume plugins of %s: %w", name, err)
	}
	client, err := controllerContext.NewClient("attachdetach-controller")
	if err != nil {
		return nil, fmt.Errorf("create client of %s: %w", name, err)
	}
	core, storage := controllerContext.InformerFactory.Core().V1(), controllerContext.InformerFactory.Storage().V1()
	controller, err := attachdetach.NewAttachDetachController(ctx, client,
		core.Pods(), core.Nodes(), core.PersistentVolumeClaims(), core.PersistentVolumes(),
		storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(),
		p.replace(plugins), app.GetDynamicPluginProber(ctx, volumes),
		config.DisableAttachDetachReconcilerSync, config.ReconcilerSyncLoopPeriod.Duration, config.DisableForceDetachOnTimeout,
		attachdetach.DefaultTimerConfig)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", name, err)
	}
	return loop{name, controller.Run}, nil
}

// newSELinuxWarningController is upstream's function of the same name with kedge's
// plugin. The controller runs only if the user turns it on.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/core.go newSELinuxWarningController
func (p *csiPlugin) newSELinuxWarningController(ctx context.Context, controllerContext app.ControllerContext) (app.Controller, error) {
	name := names.SELinuxWarningController
	volumes := controllerContext.ComponentConfig.PersistentVolumeBinderController.VolumeConfiguration
	plugins, err := app.ProbePersistentVolumePlugins(klog.FromContext(ctx), volumes)
	if err != nil {
		return nil, fmt.Errorf("find volume plugins of %s: %w", name, err)
	}
	client, err := controllerContext.NewClient(name)
	if err != nil {
		return nil, fmt.Errorf("create client of %s: %w", name, err)
	}
	core := controllerContext.InformerFactory.Core().V1()
	controller, err := selinuxwarning.NewController(ctx, client, core.Pods(), core.PersistentVolumeClaims(), core.PersistentVolumes(),
		controllerContext.InformerFactory.Storage().V1().CSIDrivers(), p.replace(plugins), app.GetDynamicPluginProber(ctx, volumes))
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", name, err)
	}
	return loop{name, func(ctx context.Context) { controller.Run(ctx, 1) }}, nil
}
