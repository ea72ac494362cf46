package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/mux"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/prometheus/slis"
	genericmanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/healthz"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
)

// ControllersConfig is what NewControllers has to know.
type ControllersConfig struct {
	API     *APIServer
	Cluster config.Cluster
	Files   pki.Files
	// Election decides when they run; nil is always.
	Election *election.Election
	// Args are the user's arguments of kube-controller-manager, as name=value.
	Args []string
}

// Controllers is kube-controller-manager.
type Controllers struct {
	api      *APIServer
	election *election.Election
	options  *options.KubeControllerManagerOptions
	podCIDRs []netip.Prefix
	csi      *csiPlugin
}

// NewControllers returns an error if the user's arguments are wrong.
func NewControllers(c ControllersConfig) (*Controllers, error) {
	o, err := controllersOptions(&c)
	if err != nil {
		return nil, err
	}
	return &Controllers{api: c.API, election: c.Election, options: o, podCIDRs: c.Cluster.PodCIDRs()}, nil
}

// Name implements component.Component.
func (c *Controllers) Name() string { return "controllers" }

// Run implements component.Component. The controllers are ready when their
// informers have synced, or when another server's are to run.
func (c *Controllers) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := newRangeFaults(klog.Background(), c.options.NodeIPAMController.NodeIPAMControllerConfiguration, c.podCIDRs)
	ctx = klog.NewContext(ctx, log.WithName(c.Name()))
	shared, err := c.api.Informers(ctx)
	if err != nil {
		return err
	}
	defer shared.Shutdown()
	client, err := serviceAccountClients{c.api, ctx}.Client("attachdetach-controller")
	if err != nil {
		return fmt.Errorf("create client of controllers: %w", err)
	}
	if c.csi, err = newCSIPlugin(shared, client); err != nil {
		return err
	}
	return c.election.RunLoops(ctx, c, ready)
}

// Lead implements election.Loops: it builds all controllers and runs them.
func (c *Controllers) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	completed, err := c.complete()
	if err != nil {
		return err
	}
	health := healthz.NewMutableHealthzHandler()
	base := c.handler(health)
	closed, err := c.api.serveSide(ctx, c.options.SecureServing, base)
	if err != nil {
		return err
	}
	defer closed()
	defer cancel()
	return c.control(ctx, completed, base, health, ready)
}

// Follow implements election.Loops: as upstream's controllers that stand by it
// is healthy, and has metrics.
func (c *Controllers) Follow(ctx context.Context) error {
	closed, err := c.api.serveSide(ctx, c.options.SecureServing, c.handler(healthz.NewMutableHealthzHandler()))
	if err != nil {
		return err
	}
	<-ctx.Done()
	closed()
	return nil
}

func (c *Controllers) handler(health http.Handler) *mux.PathRecorderMux {
	base := genericmanager.NewBaseHandler(c.options.Generic.Debugging.DebuggingConfiguration, health)
	slis.SLIMetricsWithReset{}.Install(base)
	return base
}

// complete makes upstream's configuration of the options. Upstream's own Config
// would ask for a kubeconfig and, in a pod, find the outer cluster's
// (cmd/kube-controller-manager/app/options/options.go).
func (c *Controllers) complete() (*managerconfig.CompletedConfig, error) {
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	if err := c.options.Validate(known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("check arguments: %w", err)
	}
	// Serving is set up by serveSide, which knows whom to ask who may call.
	o, noServing := *c.options, *c.options.SecureServing
	noServing.BindPort = 0
	o.SecureServing = &noServing
	built := &managerconfig.Config{}
	if err := o.ApplyTo(built, known, disabled, aliases); err != nil {
		return nil, fmt.Errorf("apply arguments: %w", err)
	}
	return built.Complete(), nil
}

// control builds all controllers and runs them until ctx ends.
func (c *Controllers) control(ctx context.Context, completed *managerconfig.CompletedConfig, base *mux.PathRecorderMux, health app.HealthCheckAdder, ready func()) error {
	controllerContext, err := newControllerContext(ctx, c.api, completed)
	if err != nil {
		return err
	}
	defer controllerContext.InformerFactory.Shutdown()
	descriptors := app.NewControllerDescriptors()
	controllers, err := c.buildOwn(ctx, controllerContext, descriptors)
	if err != nil {
		return err
	}
	upstreams, err := app.BuildControllers(ctx, controllerContext, descriptors, base, health)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("build controllers: %w", err)
	}
	controllers = append(controllers, upstreams...)

	controllerContext.InformerFactory.Start(ctx.Done())
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

// buildOwn builds the controllers that kedge puts in the place of upstream's,
// and takes those away.
func (c *Controllers) buildOwn(ctx context.Context, controllerContext app.ControllerContext, descriptors map[string]*app.ControllerDescriptor) ([]app.Controller, error) {
	// Its descriptor has a nil client in it (controller_descriptor.go,
	// NewControllerDescriptors) and its fields cannot be set from here.
	delete(descriptors, names.ServiceAccountTokenController)
	tokens, err := newTokenController(ctx, c.api, controllerContext)
	if err != nil {
		return nil, err
	}
	controllers := []app.Controller{tokens}
	for name, build := range map[string]func(context.Context, app.ControllerContext) (app.Controller, error){
		names.ValidatingAdmissionPolicyStatusController: newPolicyStatusController,
		names.PersistentVolumeAttachDetachController:    c.csi.newAttachDetachController,
		names.SELinuxWarningController:                  c.csi.newSELinuxWarningController,
	} {
		descriptor := descriptors[name]
		delete(descriptors, name)
		gated := slices.ContainsFunc(descriptor.GetRequiredFeatureGates(), func(gate featuregate.Feature) bool {
			return !utilfeature.DefaultFeatureGate.Enabled(gate)
		})
		if gated || !controllerContext.IsControllerEnabled(descriptor) {
			continue
		}
		controller, err := build(klog.NewContext(ctx, klog.FromContext(ctx).WithName(name)), controllerContext)
		if err != nil {
			return nil, err
		}
		controllers = append(controllers, controller)
	}
	return controllers, nil
}
