package objectcache

import (
	"context"
	"sync"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/shelf"
)

// Metadata returns a factory of informers of objects' metadata, for a component that ends
// with ctx and must then call Shutdown. As with views, handlers share what an informer
// tells. resync is the period for handlers that name none.
//
// The garbage collector and the quotas have a handler each for every kind of custom
// resource. When a kind is gone, both stop their controllers of it, and then this
// factory ends the informer. Upstream's factory would ask for the kind for ever.
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/garbagecollector/graph_builder.go GraphBuilder.controllerFor GraphBuilder.syncMonitors
//upstream:relies-on k8s.io/kubernetes/pkg/controller/resourcequota/resource_quota_monitor.go QuotaMonitor.controllerFor QuotaMonitor.SyncMonitors
//upstream:relies-on k8s.io/client-go/metadata/metadatainformer/interface.go SharedInformerFactory
func Metadata(ctx context.Context, client metadata.Interface, resync time.Duration) metadatainformer.SharedInformerFactory {
	return &metadataFactory{ctx: ctx, client: client, resync: resync, kinds: map[schema.GroupVersionResource]*metadataKind{}}
}

// lingerTime is how long an informer goes on without users. Upstream asks for an informer first
// and for its controller just afterwards. In between, the last other user may leave.
const lingerTime = time.Minute

type metadataFactory struct {
	ctx    context.Context
	client metadata.Interface
	resync time.Duration

	mu      sync.Mutex
	kinds   map[schema.GroupVersionResource]*metadataKind
	running sync.WaitGroup
}

// metadataKind is the informer of a kind, for all that use it.
type metadataKind struct {
	informers.GenericInformer
	cache   *Cache
	end     context.CancelFunc
	started bool
	users   int // those that run a controller
}

// ForResource implements metadatainformer.SharedInformerFactory. A caller that runs the
// informer's controller uses the informer until that ends.
func (m *metadataFactory) ForResource(resource schema.GroupVersionResource) informers.GenericInformer {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind, ok := m.kinds[resource]
	if !ok {
		ctx, end := context.WithCancel(m.ctx)
		kind = &metadataKind{
			GenericInformer: metadatainformer.NewFilteredMetadataInformer(m.client, resource, metav1.NamespaceAll, 0,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil),
			cache: &Cache{ctx: ctx, hubs: map[cache.Indexer]*hub{}},
			end:   end,
		}
		// This fails only for an informer that runs.
		_ = kind.Informer().SetTransform(identities())
		m.kinds[resource] = kind
	}
	started := make(chan struct{})
	close(started)
	return &metadataUse{
		metadataKind: kind,
		view:         &view{Cache: kind.cache, Options: Options{Resync: m.resync}, ctx: kind.cache.ctx, started: started, handlers: map[*listener]bool{}},
		enter:        func() { m.enter(kind) },
		leave:        func() { m.leave(resource, kind) },
	}
}

// identities returns a cache.TransformFunc that leaves of an object's metadata what says
// which object it is, in which version, whose, and whether it may go. Labels and
// annotations of custom resources can be larger than all of that, and the garbage collector
// and the quotas do not read them.
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/garbagecollector/graph_builder.go GraphBuilder.processGraphChanges
//upstream:relies-on k8s.io/kubernetes/pkg/controller/resourcequota/resource_quota_monitor.go QuotaMonitor.processResourceChanges
//upstream:relies-on k8s.io/kubernetes/pkg/controller/storageversionmigrator/storageversionmigrator.go SVMController.runMigration
func identities() cache.TransformFunc {
	var s shelf.Shelf[metav1.PartialObjectMetadata]
	return func(object any) (any, error) {
		is, ok := object.(*metav1.PartialObjectMetadata)
		if !ok {
			return object, nil
		}
		kept := s.Place()
		kept.TypeMeta, kept.Namespace = unique.Make(is.TypeMeta).Value(), unique.Make(is.Namespace).Value()
		kept.Name, kept.UID, kept.ResourceVersion = s.String(is.Name), types.UID(s.String(string(is.UID))), s.String(is.ResourceVersion)
		kept.DeletionTimestamp, kept.OwnerReferences, kept.Finalizers = is.DeletionTimestamp, is.OwnerReferences, is.Finalizers
		return kept, nil
	}
}

func (m *metadataFactory) enter(kind *metadataKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind.users++
}

// leave ends the informer of a kind if nobody uses it after lingerTime.
func (m *metadataFactory) leave(resource schema.GroupVersionResource, kind *metadataKind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kind.users--
	time.AfterFunc(lingerTime, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if kind.users == 0 && m.kinds[resource] == kind {
			kind.end()
			delete(m.kinds, resource)
		}
	})
}

// Start implements metadatainformer.SharedInformerFactory. It starts what somebody uses. It
// ignores the channel: Metadata has got the context that counts.
func (m *metadataFactory) Start(<-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kind := range m.kinds {
		if !kind.started && kind.users > 0 {
			kind.started = true
			m.running.Go(func() { kind.Informer().RunWithContext(kind.cache.ctx) })
		}
	}
}

// WaitForCacheSync implements metadatainformer.SharedInformerFactory.
func (m *metadataFactory) WaitForCacheSync(stop <-chan struct{}) map[schema.GroupVersionResource]bool {
	started := map[schema.GroupVersionResource]cache.SharedIndexInformer{}
	m.mu.Lock()
	for resource, kind := range m.kinds {
		if kind.started {
			started[resource] = kind.Informer()
		}
	}
	m.mu.Unlock()
	synced := map[schema.GroupVersionResource]bool{}
	for resource, informer := range started {
		synced[resource] = cache.WaitFor(wait.ContextForChannel(stop), "", informer.HasSyncedChecker())
	}
	return synced
}

// Shutdown implements metadatainformer.SharedInformerFactory.
func (m *metadataFactory) Shutdown() {
	m.mu.Lock()
	for _, kind := range m.kinds {
		kind.end()
	}
	m.mu.Unlock()
	m.running.Wait()
}

// metadataUse is an informer for one that uses it.
type metadataUse struct {
	*metadataKind
	view         *view
	enter, leave func()
}

// Informer implements informers.GenericInformer.
func (u *metadataUse) Informer() cache.SharedIndexInformer {
	return &usedInformer{&informer{SharedIndexInformer: u.GenericInformer.Informer(), view: u.view}, u}
}

type usedInformer struct {
	*informer
	use *metadataUse
}

// GetController implements cache.SharedInformer.
func (i *usedInformer) GetController() cache.Controller {
	i.use.enter()
	return &useController{i.informer.GetController(), i.use}
}

// useController is the controller that a user of an informer runs as long as it wants to be
// told of changes. Upstream's does nothing.
type useController struct {
	cache.Controller
	use *metadataUse
}

// Run implements cache.Controller.
func (c *useController) Run(stop <-chan struct{}) {
	<-stop
	c.use.view.Shutdown()
	c.use.leave()
}
