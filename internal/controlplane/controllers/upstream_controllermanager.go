// Follows k8s.io/kubernetes v1.37.2, cmd/kube-controller-manager/app/controllermanager.go.

package controllers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/mux"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	genericmanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/features"

	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// newControllerContext does what upstream's CreateControllerContext does, with the
// informers that this process shares. It does not register the name of its informers:
// that lasts as long as the process, so controllers could not be built a second time.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/controllermanager.go CreateControllerContext ResyncPeriod
func newControllerContext(ctx context.Context, api API, completed *managerconfig.CompletedConfig) (app.ControllerContext, error) {
	fail := func(err error) (app.ControllerContext, error) {
		return app.ControllerContext{}, fmt.Errorf("create clients of controllers: %w", err)
	}
	config := api.ClientUntil(ctx, managerUser)
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return fail(err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fail(err)
	}
	// As upstream's ResyncPeriod: controllers resync at different times, so that they do
	// not all work at once.
	minimum := completed.ComponentConfig.Generic.MinResyncPeriod.Duration
	resync := func() time.Duration { return time.Duration(float64(minimum) * (1 + rand.Float64())) }
	shared, err := api.View(ctx, objectcache.Options{Resync: resync()})
	if err != nil {
		return fail(err)
	}
	metadataInformers := objectcache.Metadata(ctx, metadataClient, resync())

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient))
	go wait.Until(mapper.Reset, 30*time.Second, ctx.Done())

	controllerContext := app.ControllerContext{
		InformerFactory:                 shared,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(shared, metadataInformers),
		ComponentConfig:                 completed.ComponentConfig,
		RESTMapper:                      mapper,
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    resync,
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics(program.Name),
	}
	controllersmetrics.Register()

	clients, known := serviceAccountClients{api: api, ctx: ctx}, app.NewControllerDescriptors()
	if utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionMigrator) && controllerContext.IsControllerEnabled(known[names.StorageVersionMigratorController]) {
		clients.migrating = migrating(shared.Storagemigration().V1().StorageVersionMigrations().Lister())
	}
	controllerContext.ClientBuilder = clients

	collector := completed.ComponentConfig.GarbageCollectorController
	if collector.EnableGarbageCollector && controllerContext.IsControllerEnabled(known[names.GarbageCollectorController]) {
		ignored := map[schema.GroupResource]struct{}{}
		for _, r := range collector.GCIgnoredResources {
			ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
		}
		controllerContext.GraphBuilder = garbagecollector.NewDependencyGraphBuilder(ctx, metadataClient, mapper, ignored,
			controllerContext.ObjectOrMetadataInformerFactory, controllerContext.InformersStarted)
	}
	return controllerContext, nil
}

// control builds all controllers and runs them until ctx ends, as upstream's Run does.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/controllermanager.go Run
func (m *Manager) control(ctx context.Context, completed *managerconfig.CompletedConfig, base *mux.PathRecorderMux, health app.HealthCheckAdder, ready func()) error {
	controllerContext, err := newControllerContext(ctx, m.api, completed)
	if err != nil {
		return err
	}
	defer controllerContext.InformerFactory.Shutdown()
	descriptors := app.NewControllerDescriptors()
	controllers, err := m.buildOwn(ctx, controllerContext, descriptors)
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
	var late running
	if !app.RunControllers(ctx, controllerContext, late.follow(controllers), app.ControllerStartJitter, completed.ControllerShutdownTimeout) {
		return fmt.Errorf("these controllers did not stop within %v: %s", completed.ControllerShutdownTimeout, &late)
	}
	if ctx.Err() == nil {
		return errors.New("all controllers ended without being asked to")
	}
	return nil
}

// handler answers on the controllers' port, as upstream's Run has it.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-controller-manager/app/controllermanager.go Run
func (m *Manager) handler(health http.Handler) *mux.PathRecorderMux {
	base := genericmanager.NewBaseHandler(m.options.Generic.Debugging.DebuggingConfiguration, health)
	metrics.Install(base, m.paths)
	return base
}
