// Package sources has the objects of the cluster that Gateways and Ingresses depend on. Package
// gatewaycontrol reads all of them in each run (Sources.Read), and says afterwards what the run needs
// (Sources.Settle). Kinds that no run needs are not watched (stages.go). A change of an object that no
// run needs does not lead to a run (relevance.go).
//
// While the cluster has no Gateway and no Ingress that is kedge's business, only Gateways, Ingresses and
// the classes of both are watched. The first one starts the rest, and the last one ends it. Kinds of
// Kubernetes come from the cache that the API server of this process has anyway.
package sources

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	netlisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/certificates"
)

// Config is what Sources need.
type Config struct {
	// Custom reads the kinds of the Gateway API and LoadBalancerPools.
	Custom dynamic.Interface
	// Informers have the kinds of Kubernetes.
	Informers objectcache.Source
	// Pools says that kedge gives Services addresses of LoadBalancerPools.
	Pools bool
	// Changes receives when an object has changed that may matter.
	Changes loop.Changes
}

// Sources watches objects. One goroutine uses it.
type Sources struct {
	cfg       Config
	relevance relevance
	// certificates are those of the Secrets that the last run has read.
	certificates certificates.Cache

	// base is always there.
	base              *objectcache.Stage
	classes, gateways cache.Store
	ingresses         netlisters.IngressLister
	ingressClasses    netlisters.IngressClassLister

	// objects is there while a Gateway or an Ingress is kedge's business.
	objects    *objectcache.Stage
	services   corelisters.ServiceLister
	slices     discoverylisters.EndpointSliceLister
	pods       corelisters.PodLister
	secrets    corelisters.SecretLister
	namespaces corelisters.NamespaceLister
	nodes      corelisters.NodeLister
	pools      cache.Store // or nil

	// routes is there while a Gateway is kedge's business. kinds are the kinds of the Gateway
	// API that base does not have.
	routes *objectcache.Stage
	kinds  map[schema.GroupVersionResource]cache.Store

	// configs is there while somebody refers to a ConfigMap. It reads all of them from the
	// cache of this process. Where the controllers run, the cache has them anyway. Elsewhere,
	// they share their memory with the API server's watch cache.
	configs    *objectcache.Stage
	configMaps corelisters.ConfigMapLister
}

// Start starts what is always watched, and waits for it until ctx ends.
func Start(ctx context.Context, cfg Config) (*Sources, error) {
	base, err := objectcache.NewStage(ctx, cfg.Informers)
	if err != nil {
		return nil, err
	}
	s := &Sources{cfg: cfg, base: base}
	s.clear()
	if err := s.addBase(); err != nil {
		s.Stop()
		return nil, err
	}
	s.base.Start()
	return s, nil
}

// Stop ends all stages.
func (s *Sources) Stop() {
	for _, stage := range []*objectcache.Stage{s.configs, s.routes, s.objects, s.base} {
		stage.Stop()
	}
}

// Needs is what a run has found to be needed.
type Needs struct {
	// Gateways and Ingresses say that one of them is kedge's business.
	Gateways, Ingresses bool
	// Objects are those on which the result depends, whether they exist or not. Nobody may change
	// them afterwards.
	Objects Names
}

// Settle ends the run that Read has begun: it starts the stages that the run needs, and stops those
// that it does not need. It tells whether there are more objects now, so that the result is not the
// whole truth.
func (s *Sources) Settle(ctx context.Context, needs Needs) (more bool, err error) {
	s.certificates.Sweep()
	if s.relevance.end(needs.Objects) {
		s.cfg.Changes.Notify()
	}
	hasConfigs := slices.ContainsFunc(needs.Objects[ConfigMap], func(names map[types.NamespacedName]bool) bool { return len(names) > 0 })
	for _, step := range []struct {
		stage  **objectcache.Stage
		needed bool
		add    func() error
	}{
		{&s.objects, needs.Gateways || needs.Ingresses, s.addObjects},
		{&s.routes, needs.Gateways, s.addRoutes},
		{&s.configs, needs.Gateways && hasConfigs, s.addConfigs},
	} {
		switch running := *step.stage != nil; {
		case step.needed && !running:
			if *step.stage, err = objectcache.NewStage(ctx, s.cfg.Informers); err != nil {
				return false, err
			}
			if err := step.add(); err != nil {
				return false, err
			}
			(*step.stage).Start()
			more = true
		case !step.needed && running:
			(*step.stage).Stop()
			*step.stage = nil
			s.clear()
		}
	}
	return more, nil
}

// clear lets the listers of stages that are not there find nothing.
func (s *Sources) clear() {
	nothing := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if s.objects == nil {
		s.services, s.slices, s.pods = corelisters.NewServiceLister(nothing), discoverylisters.NewEndpointSliceLister(nothing), corelisters.NewPodLister(nothing)
		s.secrets, s.namespaces, s.nodes = corelisters.NewSecretLister(nothing), corelisters.NewNamespaceLister(nothing), corelisters.NewNodeLister(nothing)
		s.pools = nil
	}
	if s.routes == nil {
		s.kinds = nil
	}
	if s.configs == nil {
		s.configMaps = corelisters.NewConfigMapLister(nothing)
	}
}
