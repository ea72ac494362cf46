package customresources

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

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

// backend is one of upstream's handlers of custom resources. It lets the handler forget the kinds
// that are not used. Upstream's handler forgets what its informer does not list any more. This one
// has an informer that leaves out what is to be forgotten.
type backend struct {
	upstream    upstreamHandler
	events      cache.ResourceEventHandler
	definitions listers.CustomResourceDefinitionLister
	view        view
	// removing is held while the handler looks for kinds to forget.
	removing sync.Mutex
	uses

	// storing guards stores, the storage that the handler has made and not yet destroyed.
	storing sync.Mutex
	stores  map[*store]bool
}

// upstreamHandler is what upstream's handler can do.
type upstreamHandler interface {
	http.Handler
	finalizer.CRClientGetter
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
	b := &backend{definitions: c.Definitions.Lister(), view: v, stores: map[*store]bool{}}
	b.uses = uses{kinds: map[string]*kind{}, removeDead: b.removeDead}
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
	return b, nil
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
	b.uses.close()
	b.storing.Lock()
	stores := b.stores
	b.stores = map[*store]bool{}
	b.storing.Unlock()
	// This ends what upstream has started for each storage.
	b.removeDead()
	for s := range stores {
		s.destroy()
	}
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
	v := b.version(name, version)
	if v == nil {
		return nil, fmt.Errorf("%s has no version %s any more", name, version)
	}
	if _, err := v.storage.use(); err != nil {
		return nil, err
	}
	return v.codec, nil
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
	return slices.DeleteFunc(definitions, func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return l.backend.isLeaving(d.Name)
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
