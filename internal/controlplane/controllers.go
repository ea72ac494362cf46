package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/component-base/metrics/prometheus/slis"
	genericmanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/healthz"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/pki"
)

// ControllersConfig is what NewControllers has to know.
type ControllersConfig struct {
	API     *APIServer
	Cluster config.Cluster
	Files   pki.Files
	// Args are the user's arguments of kube-controller-manager, as name=value.
	Args []string
}

// Controllers is kube-controller-manager.
type Controllers struct {
	api     *APIServer
	options *options.KubeControllerManagerOptions
}

// NewControllers returns an error if the user's arguments are wrong.
func NewControllers(c ControllersConfig) (*Controllers, error) {
	o, err := controllersOptions(&c)
	if err != nil {
		return nil, err
	}
	return &Controllers{c.API, o}, nil
}

// Name implements component.Component.
func (c *Controllers) Name() string { return "controllers" }

// Run implements component.Component. The controllers are ready when their
// informers have synced.
func (c *Controllers) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = klog.NewContext(ctx, klog.Background().WithName(c.Name()))

	// Upstream's own Config would ask for a kubeconfig and, in a pod, find the
	// outer cluster's (cmd/kube-controller-manager/app/options/options.go).
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := c.options.Validate(known, disabled, aliases); err != nil {
		return fmt.Errorf("check arguments: %w", err)
	}
	completed, err := c.apply(known, disabled, aliases)
	if err != nil {
		return err
	}
	health := healthz.NewMutableHealthzHandler()
	base := genericmanager.NewBaseHandler(&completed.ComponentConfig.Generic.Debugging, health)
	slis.SLIMetricsWithReset{}.Install(base)
	closed, err := c.serve(ctx, completed, base)
	if err != nil {
		return err
	}
	defer closed()
	defer cancel()
	return c.control(ctx, completed, base, health, ready)
}

// apply makes upstream's configuration of the options.
func (c *Controllers) apply(known, disabled []string, aliases map[string]string) (*managerconfig.CompletedConfig, error) {
	// Serving is set up by secure, which knows whom to ask who may call.
	o, noServing := *c.options, *c.options.SecureServing
	noServing.BindPort = 0
	o.SecureServing = &noServing
	built := &managerconfig.Config{}
	err := o.ApplyTo(built, known, disabled, aliases)
	if err != nil {
		return nil, fmt.Errorf("apply arguments: %w", err)
	}
	built.SecureServing, built.Authentication, built.Authorization, err = c.api.secure(c.options.SecureServing)
	if err != nil {
		return nil, err
	}
	return built.Complete(), nil
}

// serve answers /healthz, /metrics and the like until ctx ends. It returns a
// function that waits for the end.
func (c *Controllers) serve(ctx context.Context, completed *managerconfig.CompletedConfig, base http.Handler) (func(), error) {
	if completed.SecureServing == nil {
		return func() {}, nil
	}
	handler := genericmanager.BuildHandlerChain(base, &completed.Authorization, &completed.Authentication)
	stopped, unheard, err := completed.SecureServing.Serve(handler, 0, ctx.Done())
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	return func() { <-unheard; <-stopped }, nil
}

// control builds all controllers and runs them until ctx ends.
func (c *Controllers) control(ctx context.Context, completed *managerconfig.CompletedConfig, base *mux.PathRecorderMux, health app.HealthCheckAdder, ready func()) error {
	controllerContext, err := newControllerContext(ctx, c.api, completed)
	if err != nil {
		return err
	}
	descriptors := app.NewControllerDescriptors()
	// Its descriptor has a nil client in it (controller_descriptor.go,
	// NewControllerDescriptors) and its fields cannot be set from here.
	tokens, err := newTokenController(ctx, c.api, controllerContext)
	if err != nil {
		return err
	}
	delete(descriptors, tokens.Name())
	policies, err := newPolicyStatusController(c.api, controllerContext, descriptors[names.ValidatingAdmissionPolicyStatusController])
	if err != nil {
		return err
	}
	delete(descriptors, names.ValidatingAdmissionPolicyStatusController)
	controllers, err := app.BuildControllers(ctx, controllerContext, descriptors, base, health)
	if err != nil {
		return fmt.Errorf("build controllers: %w", err)
	}
	controllers = append(controllers, tokens)
	if policies != nil {
		controllers = append(controllers, policies)
	}

	controllerContext.InformerFactory.Start(ctx.Done())
	defer controllerContext.InformerFactory.Shutdown()
	controllerContext.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(controllerContext.InformersStarted)
	var waiting wait.Group
	defer waiting.Wait()
	waiting.Start(func() {
		controllerContext.InformerFactory.WaitForCacheSync(ctx.Done())
		if ctx.Err() == nil {
			ready()
		}
	})
	if !app.RunControllers(ctx, controllerContext, controllers, app.ControllerStartJitter, completed.ControllerShutdownTimeout) {
		return fmt.Errorf("some controllers did not stop within %v", completed.ControllerShutdownTimeout)
	}
	if ctx.Err() == nil {
		return errors.New("all controllers ended without being asked to")
	}
	return nil
}
