package gatewaycontrol

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	netlisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/compile"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
)

// sources are the objects that a Compiler reads. Only the goroutine of Run uses it. It has
// stages, each with the informers that are needed for one purpose.
type sources struct {
	*Compiler
	custom dynamic.Interface
	// certificates are those of the Secrets that the last run has read.
	certificates certificates.Cache

	// base is always there.
	base           *stage
	classes        *watched
	gateways       *watched
	ingresses      netlisters.IngressLister
	ingressClasses netlisters.IngressClassLister

	// objects is there while a Gateway or an Ingress is kedge's business.
	objects    *stage
	services   corelisters.ServiceLister
	slices     discoverylisters.EndpointSliceLister
	pods       corelisters.PodLister
	secrets    corelisters.SecretLister
	namespaces corelisters.NamespaceLister
	nodes      corelisters.NodeLister
	// watchedPools are the pools of the load balancer. They are nil if kedge gives no addresses
	// of pools.
	watchedPools *watched

	// routes is there while a Gateway is kedge's business. kinds are the kinds of the Gateway
	// API that base does not have.
	routes *stage
	kinds  map[schema.GroupVersionResource]*watched

	// configs is there while somebody refers to a ConfigMap. It reads all of them from the
	// cache of this process. Where the controllers run, the cache has them anyway. Elsewhere,
	// they share their memory with the API server's watch cache.
	configs    *stage
	configMaps corelisters.ConfigMapLister
}

// stage are informers that are started and stopped together.
type stage struct {
	cancel  context.CancelFunc
	factory informers.SharedInformerFactory // or nil
	running sync.WaitGroup
	// waits wait until objects are there. They return false if ctx ends before.
	waits []func(ctx context.Context) bool
}

// newStage makes a stage. Its context ends with the stage. If shared is not nil, the stage
// has a factory of it.
func newStage(ctx context.Context, shared objectcache.Source) (*stage, context.Context, error) {
	ctx, cancel := context.WithCancel(ctx)
	made := &stage{cancel: cancel}
	if shared != nil {
		factory, err := shared(ctx)
		if err != nil {
			cancel()
			return nil, nil, err
		}
		made.factory = factory
	}
	return made, ctx, nil
}

// stop ends the informers of a stage. It waits for their goroutines.
func (g *stage) stop() {
	if g == nil {
		return
	}
	g.cancel()
	if g.factory != nil {
		g.factory.Shutdown()
	}
	g.running.Wait()
}

// wait starts the shared informers of a stage, and waits for all. It returns false if ctx
// ends before.
func (g *stage) wait(ctx context.Context) bool {
	if g.factory != nil {
		g.factory.StartWithContext(ctx)
	}
	for _, wait := range g.waits {
		if !wait(ctx) {
			return false
		}
	}
	return true
}

// handle adds a handler to a shared informer.
func (g *stage) handle(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	g.waits = append(g.waits, func(ctx context.Context) bool {
		select {
		case <-registration.HasSyncedChecker().Done():
			return true
		case <-ctx.Done():
			return false
		}
	})
	return nil
}

// watch adds a custom kind.
func (s *sources) watch(ctx context.Context, of *stage, kind schema.GroupVersionResource, convert cache.TransformFunc) *watched {
	w := watchKind(ctx, &of.running, s.custom, kind, convert, s.changes.Notify)
	of.waits = append(of.waits, w.wait)
	return w
}

// startBase starts what is always watched, and waits for it until ctx ends.
func (s *sources) startBase(ctx context.Context) (err error) {
	var own context.Context
	if s.base, own, err = newStage(ctx, s.cfg.Informers); err != nil {
		return err
	}
	s.classes = s.watch(own, s.base, classResource, typed[gwv1.GatewayClass])
	s.gateways = s.watch(own, s.base, gatewayResource, typed[gwv1.Gateway])
	networking := s.base.factory.Networking().V1()
	s.ingresses, s.ingressClasses = networking.Ingresses().Lister(), networking.IngressClasses().Lister()
	if err := s.base.handle(networking.Ingresses().Informer(), objectcache.Handler[*netv1.Ingress](s.changes, nil, nil)); err != nil {
		return err
	}
	if err := s.base.handle(networking.IngressClasses().Informer(), objectcache.Handler[*netv1.IngressClass](s.changes, nil, nil)); err != nil {
		return err
	}
	s.base.wait(own)
	return nil
}

// startObjects starts what every Gateway and Ingress needs.
func (s *sources) startObjects(ctx context.Context) error {
	made, own, err := newStage(ctx, s.cfg.Informers)
	if err != nil {
		return err
	}
	s.objects = made
	core, discovery := made.factory.Core().V1(), made.factory.Discovery().V1()
	s.services, s.slices, s.pods = core.Services().Lister(), discovery.EndpointSlices().Lister(), core.Pods().Lister()
	s.secrets, s.namespaces, s.nodes = core.Secrets().Lister(), core.Namespaces().Lister(), core.Nodes().Lister()
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.Services().Informer(): objectcache.Handler(s.changes, func(service *corev1.Service) bool {
			return s.touched(serviceKind, service.Namespace, service.Name)
		}, nil),
		discovery.EndpointSlices().Informer(): objectcache.Handler(s.changes, func(slice *discoveryv1.EndpointSlice) bool {
			return s.touched(serviceKind, slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])
		}, nil),
		// Pods change far more often than their addresses.
		core.Pods().Informer(): objectcache.Handler(s.changes, func(pod *corev1.Pod) bool {
			return s.touched(podKind, pod.Namespace, pod.Name)
		}, endpoints.SamePod),
		core.Secrets().Informer(): objectcache.Handler(s.changes, func(secret *corev1.Secret) bool {
			return s.touched(secretKind, secret.Namespace, secret.Name)
		}, nil),
		core.Namespaces().Informer(): objectcache.Handler(s.changes, nil, isSameNamespace),
		// The kubelet writes its Node every few minutes.
		core.Nodes().Informer(): objectcache.Handler(s.changes, nil, func(before, now *corev1.Node) bool {
			return labels.Equals(before.Labels, now.Labels) && endpoints.SameNode(before, now)
		}),
	} {
		if err := made.handle(informer, handler); err != nil {
			return err
		}
	}
	if s.cfg.Pools {
		s.watchedPools = s.watch(own, made, poolResource, objectcache.WithoutManagedFields)
	}
	made.wait(own)
	return nil
}

// startRoutes starts what only Gateways need.
func (s *sources) startRoutes(ctx context.Context) error {
	made, own, err := newStage(ctx, nil)
	if err != nil {
		return err
	}
	s.routes = made
	s.kinds = map[schema.GroupVersionResource]*watched{}
	for kind, convert := range map[schema.GroupVersionResource]cache.TransformFunc{
		listenerSetResource: typed[gwv1.ListenerSet],
		httpRouteResource:   typed[gwv1.HTTPRoute],
		grpcRouteResource:   typed[gwv1.GRPCRoute],
		tlsRouteResource:    typed[gwv1.TLSRoute],
		tcpRouteResource:    typed[gwv1.TCPRoute],
		udpRouteResource:    typed[gwv1.UDPRoute],
		grantResource:       typed[gwv1.ReferenceGrant],
		policyResource:      typed[gwv1.BackendTLSPolicy],
	} {
		s.kinds[kind] = s.watch(own, made, kind, convert)
	}
	made.wait(own)
	return nil
}

// startConfigs starts reading ConfigMaps.
func (s *sources) startConfigs(ctx context.Context) error {
	made, own, err := newStage(ctx, s.cfg.Informers)
	if err != nil {
		return err
	}
	s.configs = made
	s.configMaps = made.factory.Core().V1().ConfigMaps().Lister()
	err = made.handle(made.factory.Core().V1().ConfigMaps().Informer(), objectcache.Handler(s.changes, func(config *corev1.ConfigMap) bool {
		return s.touched(configMapKind, config.Namespace, config.Name)
	}, nil))
	if err != nil {
		return err
	}
	made.wait(own)
	return nil
}

// touched notes that an object has changed, and tells whether that matters.
func (s *sources) touched(kind, namespace, name string) bool {
	return s.matters.touch(object{kind, types.NamespacedName{Namespace: namespace, Name: name}})
}

// adjust starts the stages that a result needs, and stops those that nobody needs. It tells
// whether there are more objects now, so that the result is not the whole truth.
func (s *sources) adjust(ctx context.Context, now *compiled) (more bool, err error) {
	hasGateways := s.hasGateways()
	hasObjects := hasGateways || len(now.ingresses.Served) > 0
	for _, step := range []struct {
		stage  **stage
		needed bool
		start  func(context.Context) error
	}{
		{&s.objects, hasObjects, s.startObjects},
		{&s.routes, hasGateways, s.startRoutes},
		{&s.configs, hasGateways && len(now.gateways.ConfigMaps) > 0, s.startConfigs},
	} {
		switch running := *step.stage != nil; {
		case step.needed && !running:
			if err := step.start(ctx); err != nil {
				return false, err
			}
			more = true
		case !step.needed && running:
			(*step.stage).stop()
			*step.stage = nil
		}
	}
	return more, nil
}

// hasGateways tells whether a Gateway is of one of kedge's classes.
func (s *sources) hasGateways() bool {
	ours := map[gwv1.ObjectName]bool{}
	for _, class := range list[gwv1.GatewayClass](s.classes) {
		ours[gwv1.ObjectName(class.Name)] = class.Spec.ControllerName == compile.Controller
	}
	for _, gateway := range list[gwv1.Gateway](s.gateways) {
		if ours[gateway.Spec.GatewayClassName] {
			return true
		}
	}
	return false
}

// stop ends all stages.
func (s *sources) stop() {
	for _, running := range []*stage{s.configs, s.routes, s.objects, s.base} {
		running.stop()
	}
}
