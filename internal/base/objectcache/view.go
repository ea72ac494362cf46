package objectcache

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// view is a factory for one component. Its Shutdown removes the handlers that the
// component has added, and leaves the informers running.
//
// Handlers get nothing before Start, even if the informer has been running for long:
// upstream's constructors add handlers before they have set everything that the handlers
// need (such as pkg/controller/deployment, NewDeploymentController).
//
// view runs informers with a context. With only the channel that Start gets, every watch
// would cost two more goroutines, because package context cannot see into
// apimachinery/pkg/util/wait.ContextForChannel.
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/deployment/deployment_controller.go NewDeploymentController
//upstream:relies-on k8s.io/apimachinery/pkg/util/wait/wait.go ContextForChannel
type view struct {
	groups
	*Cache
	Options
	ctx context.Context

	started chan struct{} // closed by start
	start   func()

	mu       sync.Mutex
	closed   bool
	handlers map[*listener]bool
	asked    map[reflect.Type]bool // the shared kinds that InformerFor was called for
}

// View returns a factory for a component that ends with ctx and must then call Shutdown.
func (c *Cache) View(ctx context.Context, options Options) informers.SharedInformerFactory {
	v := &view{
		Cache:    c,
		Options:  options,
		ctx:      ctx,
		handlers: map[*listener]bool{},
		asked:    map[reflect.Type]bool{},
		started:  make(chan struct{}),
	}
	v.start = sync.OnceFunc(func() { close(v.started) })
	v.groups.factory = v
	return v
}

// InformerFor implements informers.SharedInformerFactory.
func (v *view) InformerFor(object runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	kind := reflect.TypeOf(object)
	v.mu.Lock()
	v.asked[kind] = true
	v.mu.Unlock()
	found := &informer{SharedIndexInformer: v.shared.InformerFor(object, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return newFunc(v.client, resync)
	}), view: v}
	if v.Only.kind == kind {
		return &selectedInformer{found, v.Only}
	}
	return found
}

// ForResource implements informers.SharedInformerFactory. It ignores Options.Only.
func (v *view) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	found, err := v.shared.ForResource(resource)
	if err != nil {
		return nil, err
	}
	return &generic{found, v}, nil
}

// InformerName implements informers.SharedInformerFactory. It returns nil: the name of
// the shared informers is not this component's.
func (*view) InformerName() *cache.InformerName { return nil }

// Start implements informers.SharedInformerFactory.
func (v *view) Start(<-chan struct{}) { v.StartWithContext(v.ctx) }

// StartWithContext implements informers.SharedInformerFactory. It ignores the context:
// View has got the one that counts.
func (v *view) StartWithContext(context.Context) {
	v.start()
	v.shared.StartWithContext(v.Cache.ctx)
}

// WaitForCacheSync implements informers.SharedInformerFactory. It also waits for the
// informers of other components. It returns only those that this component has got by
// InformerFor: the API server stays ready when another component begins with a kind.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/healthz/healthz.go informerSync.Check
func (v *view) WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool {
	synced := v.shared.WaitForCacheSync(stop)
	v.mu.Lock()
	maps.DeleteFunc(synced, func(kind reflect.Type, _ bool) bool { return !v.asked[kind] })
	v.mu.Unlock()
	return synced
}

// WaitForCacheSyncWithContext implements informers.SharedInformerFactory.
func (v *view) WaitForCacheSyncWithContext(ctx context.Context) cache.SyncResult {
	result := cache.SyncResult{Synced: v.WaitForCacheSync(ctx.Done())}
	for _, ok := range result.Synced {
		if !ok {
			result.Err = context.Cause(ctx)
		}
	}
	return result
}

// Shutdown implements informers.SharedInformerFactory.
func (v *view) Shutdown() {
	v.mu.Lock()
	v.closed = true
	handlers := v.handlers
	v.handlers = nil
	v.mu.Unlock()
	for handler := range handlers {
		handler.hub.remove(handler)
	}
}

// held is a handler that gets nothing before its view is started.
type held struct {
	handler cache.ResourceEventHandler
	view    *view
}

// released waits until the view is started. It returns false if the component ends before
// that.
func (h held) released() bool {
	select {
	case <-h.view.started:
		return true
	default:
	}
	select {
	case <-h.view.started:
		return true
	case <-h.view.ctx.Done():
		return false
	}
}

func (h held) OnAdd(object any, isInInitialList bool) {
	if h.released() {
		h.handler.OnAdd(object, isInInitialList)
	}
}

func (h held) OnUpdate(before, object any) {
	if h.released() {
		h.handler.OnUpdate(before, object)
	}
}

func (h held) OnDelete(object any) {
	if h.released() {
		h.handler.OnDelete(object)
	}
}

// Upstream's informers return such errors, too.
var (
	errClosed  = errors.New("add event handler: the factory has been shut down")
	errForeign = errors.New("remove event handler: it was not added here")
)

// informer is a shared informer, as a view shows it.
type informer struct {
	cache.SharedIndexInformer
	view *view
}

func (i *informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

func (i *informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, resync time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, cache.HandlerOptions{ResyncPeriod: &resync})
}

func (i *informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if options.ResyncPeriod == nil {
		options.ResyncPeriod = &i.view.Resync
	}
	i.view.mu.Lock()
	defer i.view.mu.Unlock()
	if i.view.closed || i.IsStopped() {
		return nil, errClosed
	}
	hub, err := i.view.hubOf(i.SharedIndexInformer)
	if err != nil {
		return nil, err
	}
	handle := hub.add(held{handler, i.view}, *options.ResyncPeriod)
	i.view.handlers[handle] = true
	return handle, nil
}

func (i *informer) RemoveEventHandler(registration cache.ResourceEventHandlerRegistration) error {
	handle, ok := registration.(*listener)
	if !ok {
		return errForeign
	}
	i.view.mu.Lock()
	delete(i.view.handlers, handle)
	i.view.mu.Unlock()
	handle.hub.remove(handle)
	return nil
}

func (i *informer) AddIndexers(indexers cache.Indexers) error {
	return i.SharedIndexInformer.AddIndexers(missing(i.SharedIndexInformer.GetIndexer(), indexers))
}

func (i *informer) GetIndexer() cache.Indexer { return indexer{i.SharedIndexInformer.GetIndexer()} }

// indexer is a shared indexer. A component may add its indexes a second time, because
// indexes stay when the component ends.
type indexer struct{ cache.Indexer }

func (i indexer) AddIndexers(indexers cache.Indexers) error {
	return i.Indexer.AddIndexers(missing(i.Indexer, indexers))
}

func missing(in cache.Indexer, indexers cache.Indexers) cache.Indexers {
	existing, kept := in.GetIndexers(), cache.Indexers{}
	for name, function := range indexers {
		if _, ok := existing[name]; !ok {
			kept[name] = function
		}
	}
	return kept
}

// generic is what informers.SharedInformerFactory.ForResource returns.
type generic struct {
	informers.GenericInformer
	view *view
}

func (g *generic) Informer() cache.SharedIndexInformer {
	return &informer{SharedIndexInformer: g.GenericInformer.Informer(), view: g.view}
}
