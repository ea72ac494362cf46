package controlplane

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/keyutil"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	managerconfig "k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	tokenscontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// newControllerContext does what upstream's CreateControllerContext does
// (cmd/kube-controller-manager/app/controllermanager.go), but for registering
// the name of its informers: that lasts as long as the process, and controllers
// that were stopped could not be built anew. Its informers are those that all
// of this process shares.
func newControllerContext(ctx context.Context, api *APIServer, completed *managerconfig.CompletedConfig) (app.ControllerContext, error) {
	fail := func(err error) (app.ControllerContext, error) {
		return app.ControllerContext{}, fmt.Errorf("create clients of controllers: %w", err)
	}
	config := api.ClientUntil(ctx, controllersUser)
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return fail(err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fail(err)
	}
	// Controllers resync at different times, so as not to work all at once.
	minimum := completed.ComponentConfig.Generic.MinResyncPeriod.Duration
	resync := func() time.Duration { return time.Duration(float64(minimum) * (1 + rand.Float64())) }
	shared, err := api.view(ctx, objectcache.Options{Resync: resync()})
	if err != nil {
		return fail(err)
	}
	metadataInformers := metadatainformer.NewSharedInformerFactoryWithOptions(metadataClient, resync(), metadatainformer.WithTransform(objectcache.WithoutManagedFields))

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoveryClient))
	go wait.Until(mapper.Reset, 30*time.Second, ctx.Done())

	controllerContext := app.ControllerContext{
		ClientBuilder:                   serviceAccountClients{api, ctx},
		InformerFactory:                 shared,
		ObjectOrMetadataInformerFactory: informerfactory.NewInformerFactory(shared, metadataInformers),
		ComponentConfig:                 completed.ComponentConfig,
		RESTMapper:                      mapper,
		InformersStarted:                make(chan struct{}),
		ResyncPeriod:                    resync,
		ControllerManagerMetrics:        controllersmetrics.NewControllerManagerMetrics(controllersProgram.name),
	}
	controllersmetrics.Register()

	collector := completed.ComponentConfig.GarbageCollectorController
	if collector.EnableGarbageCollector && controllerContext.IsControllerEnabled(app.NewControllerDescriptors()[names.GarbageCollectorController]) {
		ignored := map[schema.GroupResource]struct{}{}
		for _, r := range collector.GCIgnoredResources {
			ignored[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = struct{}{}
		}
		controllerContext.GraphBuilder = garbagecollector.NewDependencyGraphBuilder(ctx, metadataClient, mapper, ignored,
			controllerContext.ObjectOrMetadataInformerFactory, controllerContext.InformersStarted)
	}
	return controllerContext, nil
}

// loop is a controller that is built here and not by upstream.
type loop struct {
	name string
	run  func(ctx context.Context)
}

func (l loop) Name() string            { return l.name }
func (l loop) Run(ctx context.Context) { l.run(ctx) }

// newTokenController makes what fills Secrets of the type service-account-token,
// as upstream's newServiceAccountTokenController does
// (cmd/kube-controller-manager/app/service_accounts.go).
func newTokenController(ctx context.Context, api *APIServer, controllerContext app.ControllerContext) (app.Controller, error) {
	config := controllerContext.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(config.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read service-account key: %w", err)
	}
	ca, err := os.ReadFile(config.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("read root-ca-file: %w", err)
	}
	client, err := kubernetes.NewForConfig(api.ClientUntil(ctx, controllersUser))
	if err != nil {
		return nil, fmt.Errorf("create client of token controller: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("build token generator: %w", err)
	}
	core := controllerContext.InformerFactory.Core().V1()
	controller, err := tokenscontroller.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		tokenscontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: ca})
	if err != nil {
		return nil, fmt.Errorf("build token controller: %w", err)
	}
	return loop{names.ServiceAccountTokenController, func(ctx context.Context) {
		controller.Run(ctx, int(config.ConcurrentSATokenSyncs))
	}}, nil
}
