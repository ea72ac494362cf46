package customresources

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/finalizer"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// backend is one of upstream's handlers of custom resources. It knows which kinds the
// handler remembers, and lets it forget those that are not used. Upstream's handler
// forgets what its informer does not list any more. This one has an informer that
// leaves out what is to be forgotten.
type backend struct {
	upstream    upstreamHandler
	scales      scales
	events      cache.ResourceEventHandler
	definitions listers.CustomResourceDefinitionLister
	view        view
	removing    sync.Mutex
	// room tells how many more watches of a kind another handler can take. It is nil if
	// there is no such handler.
	room func(name string) int

	mu sync.Mutex
	// kinds are those that the handler may remember, by the names of their
	// definitions.
	kinds map[string]*kind
	// sweeping is nil unless a kind is to be forgotten later, at due.
	sweeping *time.Timer
	due      time.Time
	closed   bool
	// stores are the storage that the handler has made and not yet destroyed.
	stores map[*store]bool
}

// upstreamHandler is what upstream's handler can do.
type upstreamHandler interface {
	http.Handler
	finalizer.CRClientGetter
}

// kind is a kind that is in use, or was a short time ago.
type kind struct {
	requests int
	// watches are those that the handler may end: their clients begin them again.
	watches map[*informerWatch]bool
	// last is when the last request began or ended, or when an object was decoded.
	last time.Time
	// resting says that nothing but watches is left, and that the handler has ended them.
	resting  bool
	versions map[string]*version
	// leaving is closed when the handler has forgotten the kind. It is nil before it
	// begins to.
	leaving chan struct{}
}

// version is a version of a kind.
type version struct {
	// codec decodes and encodes objects in the datastore.
	codec   runtime.Codec
	storage *lateCache
	// since is when the watch cache was made. It is zero if there is none.
	since time.Time
}

// view changes the definitions that the handler sees.
type view func(*apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition

// unchanged is the view of the full handler.
func unchanged(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	return definition
}

// newBackend makes a handler of upstream's. options changes its storage. models are types
// that it adds to those of each definition, for server-side apply. Without models it has no
// types at all.
//
// Upstream's handler answers requests for discovery too. Such requests do not come
// here, so it gets no handlers for them. Nor does it get the controller that establishes
// definitions, to which upstream's other handler tells the changes, and the number of
// servers, which is for that controller.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go NewCustomResourceDefinitionHandler crdHandler.ServeHTTP crdHandler.createCustomResourceDefinition crdHandler.removeDeadStorage crdHandler.tearDown crdHandler.getOrCreateServingInfoFor
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go completedConfig.New
func newBackend(c Config, options func(*backend, generic.RESTOptions) generic.RESTOptions, v view, models map[string]*spec.Schema) (*backend, error) {
	b := &backend{definitions: c.Definitions.Lister(), view: v, kinds: map[string]*kind{}, stores: map[*store]bool{}}
	handler, err := apiextensions.NewCustomResourceDefinitionHandler(
		nil, nil, &visible{backend: b}, c.Rest,
		&restOptions{RESTOptionsGetter: c.Storage, backend: b, change: options},
		c.Admission, nil, c.ServiceResolver, c.AuthResolverWrapper, 1,
		c.Authorizer, c.RequestTimeout, c.MinRequestTimeout, models, c.MaxRequestBodyBytes,
	)
	if err != nil {
		return nil, fmt.Errorf("create handler of custom resources: %w", err)
	}
	if b.events == nil {
		return nil, fmt.Errorf("create handler of custom resources: it does not follow its definitions")
	}
	b.upstream = handler
	if b.scales, err = scalesOf(handler); err != nil {
		return nil, fmt.Errorf("create handler of custom resources: %w", err)
	}
	return b, nil
}

// informerWatch is a watch that an informer has begun.
type informerWatch struct{ end context.CancelFunc }

// enter says that a request for a kind begins. The caller calls leave when it ends.
func (b *backend) enter(name string) (leave func()) {
	k := b.lock(name)
	defer b.mu.Unlock()
	k.requests++
	b.used(k)
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		k.requests--
		b.used(k)
	}
}

// enterWatch says that an informer begins to watch a kind. That is not a use of the kind,
// because informers begin their watches again every few minutes. When the handler is going
// to forget the kind, it calls end. The caller calls leave when the watch has ended.
func (b *backend) enterWatch(name string, end context.CancelFunc) (leave func()) {
	k, w := b.lock(name), &informerWatch{end}
	defer b.mu.Unlock()
	if k.watches == nil {
		k.watches = map[*informerWatch]bool{}
	}
	k.watches[w] = true
	b.sweepAfter(k.rest())
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(k.watches, w)
		b.sweepAfter(k.rest())
	}
}

// lock waits until a kind is not being forgotten, and returns it with b.mu locked.
func (b *backend) lock(name string) *kind {
	for {
		b.mu.Lock()
		k := b.kinds[name]
		if k == nil {
			k = &kind{last: time.Now()}
			b.kinds[name] = k
		}
		if k.leaving == nil {
			return k
		}
		b.mu.Unlock()
		<-k.leaving
	}
}

// rest returns how long a kind must not be used until it can be forgotten.
func (k *kind) rest() time.Duration { return keepTime - time.Since(k.last) }

// used notes that a kind is in use.
func (b *backend) used(k *kind) {
	k.last, k.resting = time.Now(), false
	b.sweepAfter(keepTime)
}

// sweepAfter calls sweep after a time, unless it is going to be called before that.
func (b *backend) sweepAfter(duration time.Duration) {
	due := time.Now().Add(duration)
	if b.closed || b.sweeping != nil && !due.Before(b.due) {
		return
	}
	if b.sweeping != nil {
		b.sweeping.Stop()
	}
	b.due, b.sweeping = due, time.AfterFunc(duration, b.sweep)
}

// sweep lets the handler forget all kinds that were not used in keepTime. If such a kind
// is still watched, sweep ends the watches. The kind is forgotten when the last one has
// ended. So a client that does not read its watch can only keep the kind in memory.
func (b *backend) sweep() {
	b.mu.Lock()
	b.sweeping = nil
	var leaving []string
	for name, k := range b.kinds {
		if k.requests > 0 || k.leaving != nil || len(k.watches) > 0 && !b.hasRoom(name, k) {
			continue
		}
		if rest := k.rest(); rest > 0 {
			b.sweepAfter(rest)
			continue
		}
		k.resting = true
		for w := range k.watches {
			w.end()
		}
		if len(k.watches) == 0 {
			k.leaving = make(chan struct{})
			leaving = append(leaving, name)
		}
	}
	b.mu.Unlock()
	if len(leaving) > 0 {
		b.forget(leaving)
	}
}

// hasRoom tells whether another handler can take all watches of a kind.
func (b *backend) hasRoom(name string, k *kind) bool {
	return b.room != nil && len(k.watches) <= b.room(name)
}

// forget lets the handler forget kinds that are leaving.
func (b *backend) forget(names []string) {
	b.removeDead()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		close(b.kinds[name].leaving)
		delete(b.kinds, name)
	}
}

// removeDead lets the handler forget all kinds that its informer does not list. The
// handler asks for the list before it locks anything, so calls must not overlap: an older
// list may lack a kind that is in use again.
func (b *backend) removeDead() {
	b.removing.Lock()
	defer b.removing.Unlock()
	b.events.OnDelete(nil)
}

// changed lets the handler forget a kind if its definition has changed.
func (b *backend) changed(definition *apiextensionsv1.CustomResourceDefinition) {
	b.events.OnAdd(b.view(definition), false)
}

// close destroys all storage. Watches end. It may be called more than once.
func (b *backend) close() {
	b.mu.Lock()
	b.closed = true
	if b.sweeping != nil {
		b.sweeping.Stop()
		b.sweeping = nil
	}
	stores := b.stores
	b.stores = map[*store]bool{}
	b.mu.Unlock()
	// This ends what upstream has started for each storage.
	b.removeDead()
	for s := range stores {
		s.destroy()
	}
}

// settled tells whether the handler has had a watch cache of a kind's version for some time, and is
// going to remember the kind.
func (b *backend) settled(name, version string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.kinds[name]
	if k == nil || k.resting {
		return false
	}
	v := k.versions[version]
	return v != nil && !v.since.IsZero() && time.Since(v.since) >= settleTime
}

// requests returns how many requests for a kind are being served, watches included.
func (b *backend) requests(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.kinds[name]; k != nil {
		return k.requests
	}
	return 0
}

// codec returns the codec for objects of a kind in the datastore. A version of which somebody reads
// objects gets a watch cache.
func (b *backend) codec(name, version string) (runtime.Codec, error) {
	defer b.enter(name)()
	definition, err := b.definitions.Get(name)
	if err == nil {
		_, err = b.upstream.GetCustomResourceListerCollectionDeleter(definition)
	}
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	v := b.kinds[name].versions[version]
	b.mu.Unlock()
	if v == nil {
		return nil, fmt.Errorf("%s has no version %s any more", name, version)
	}
	if _, err := v.storage.use(); err != nil {
		return nil, err
	}
	return v.codec, nil
}

// cached notes that a version has got a watch cache.
func (b *backend) cached(v *version) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v.since = time.Now()
}

// decoded notes that the handler has decoded an object of a kind.
func (b *backend) decoded(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.kinds[name]; k != nil && k.leaving == nil {
		b.used(k)
	}
}

// keepVersion remembers a version of a kind that the handler has made.
func (b *backend) keepVersion(name, of string, made *version) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.kinds[name]; k != nil {
		if k.versions == nil {
			k.versions = map[string]*version{}
		}
		k.versions[of] = made
	}
}

// visible is the informer and the lister of upstream's handler. The handler only adds its
// event handler to the informer.
type visible struct {
	cache.SharedIndexInformer
	backend *backend
}

// Informer implements informers.CustomResourceDefinitionInformer.
func (v *visible) Informer() cache.SharedIndexInformer { return v }

// Lister implements informers.CustomResourceDefinitionInformer.
func (v *visible) Lister() listers.CustomResourceDefinitionLister {
	return visibleLister{backend: v.backend}
}

// AddEventHandler implements cache.SharedInformer.
func (v *visible) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	v.backend.events = handler
	return nil, nil
}

var _ informers.CustomResourceDefinitionInformer = &visible{}

// visibleLister has the definitions that the handler may remember.
type visibleLister struct {
	listers.CustomResourceDefinitionListerExpansion
	backend *backend
}

// List implements listers.CustomResourceDefinitionLister. The handler forgets what is not
// in the list.
func (l visibleLister) List(selector labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	definitions, err := l.backend.definitions.List(selector)
	if err != nil {
		return nil, err
	}
	l.backend.mu.Lock()
	defer l.backend.mu.Unlock()
	return slices.DeleteFunc(definitions, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		k := l.backend.kinds[d.Name]
		return l.backend.closed || k != nil && k.leaving != nil
	}), nil
}

// Get implements listers.CustomResourceDefinitionLister.
func (l visibleLister) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	definition, err := l.backend.definitions.Get(name)
	if err != nil {
		return nil, err
	}
	return l.backend.view(definition), nil
}
