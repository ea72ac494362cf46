// Package customresources serves custom resources with upstream's handler of them, and
// lets upstream forget what nobody uses. Upstream's handler keeps the schemas,
// validators, types for server-side apply and watch caches of a kind from the first
// request until its CustomResourceDefinition is deleted: 11 MiB for a kind of a usual
// operator. The first request comes at once, because the garbage collector watches all
// kinds.
//
// Here, upstream's handler exists twice. The full one serves as upstream's server would.
// It forgets a kind that was not used for some minutes. The light one sees definitions
// without schemas, and has no watch cache. It serves those who read or watch a kind that
// the full one does not remember. If it meets an object, it decodes the object as the full
// one would, which then remembers the kind again. So a kind takes memory while its objects
// change. If parts of objects are equal, memory has them once. The apiserver package puts this
// package into the chain of servers.
package customresources

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	// keepTime is how long the full handler remembers a kind after the last request for
	// it, or the last change of its objects. It is longer than the pause after which
	// informers repeat a failed request, and shorter than the five minutes in which the
	// memory of a burst should come back.
	keepTime = 3 * time.Minute
	// settleTime is how long a version that is used again is still read from the datastore.
	// The watch cache has to be filled first. It knows nothing of the time before that,
	// so it would refuse to continue a watch that the light handler has served. Watches
	// there know a resource version that is at most a minute old, by their bookmarks.
	settleTime = 2 * time.Minute
	// fewWatches is how many clients may watch a kind without a watch cache.
	fewWatches = 8
)

// Config is what New has to know. A field without a comment has the value that upstream's
// server for CustomResourceDefinitions has in its configuration.
type Config struct {
	// Rest answers all requests other than those for custom resources: it is that
	// server's own handler.
	Rest http.Handler
	// Definitions is the informer of that server, which must not have been started.
	Definitions informers.CustomResourceDefinitionInformer
	// Uncached makes storage without a watch cache.
	Uncached generic.StorageDecorator
	// Exists tells whether the datastore has a key with a prefix. The answer may be a
	// little old. If Exists is nil, every kind is taken for one with objects.
	Exists func(ctx context.Context, prefix string) (bool, error)

	Storage             generic.RESTOptionsGetter
	Admission           admission.Interface
	Authorizer          authorizer.UnconditionalAuthorizer
	ServiceResolver     webhook.ServiceResolver
	AuthResolverWrapper webhook.AuthenticationInfoResolverWrapper
	RequestTimeout      time.Duration
	MinRequestTimeout   time.Duration
	MaxRequestBodyBytes int64
}

// Handler serves custom resources.
type Handler struct {
	rest        http.Handler
	definitions listers.CustomResourceDefinitionLister
	storage     generic.RESTOptionsGetter
	exists      func(ctx context.Context, prefix string) (bool, error)
	full, light *backend
}

// New makes the handler, and makes it follow the informer. Call Close at the end.
func New(c Config) (*Handler, error) {
	if c.Exists == nil {
		c.Exists = func(context.Context, string) (bool, error) { return true, nil }
	}
	h := &Handler{rest: c.Rest, definitions: c.Definitions.Lister(), storage: c.Storage, exists: c.Exists}
	var err error
	// Each definition has the types of metadata among its own, so there is nothing to add.
	if h.full, err = newBackend(c, fullOptions(c.Uncached), unchanged, map[string]*spec.Schema{}); err != nil {
		return nil, err
	}
	if h.light, err = newBackend(c, lightOptions(h.full, c.Uncached), withoutSchemas, nil); err != nil {
		return nil, err
	}
	h.full.room = func(name string) int { return fewWatches - h.light.requests(name) }
	_, err = c.Definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { h.changed(nil, object) },
		UpdateFunc: h.changed,
		DeleteFunc: func(any) {
			h.full.removeDead()
			h.light.removeDead()
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch CustomResourceDefinitions: %w", err)
	}
	return h, nil
}

// changed lets both backends forget what has changed.
func (h *Handler) changed(before, after any) {
	was, _ := before.(*apiextensionsv1.CustomResourceDefinition)
	is, ok := after.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || was == is {
		return // the informer repeats everything every few minutes
	}
	for _, b := range []*backend{h.full, h.light} {
		if was != nil && was.UID != is.UID {
			b.removeDead()
		}
		b.changed(is)
	}
}

// Close ends watches, and forgets all kinds.
func (h *Handler) Close() {
	h.light.close()
	h.full.close()
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.APIGroup == apiextensionsv1.GroupName {
		h.rest.ServeHTTP(w, r)
		return
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if _, err := h.definitions.Get(resource.String()); err != nil {
		h.rest.ServeHTTP(w, r)
		return
	}
	b := h.full
	if h.needsLittle(r.Context(), info, resource) {
		b = h.light
	}
	r, leave := h.enter(b, r, info, resource.String())
	defer whenServed(r.Context(), leave)
	b.upstream.ServeHTTP(w, r)
}

// enter says to a backend that a request for a kind begins. It returns the request, which
// the full handler can end if it is an informer's watch. The caller calls leave when the
// request has been served.
func (h *Handler) enter(b *backend, r *http.Request, info *apirequest.RequestInfo, name string) (entered *http.Request, leave func()) {
	if b != h.full || !byInformer(r, info) {
		return r, b.enter(name)
	}
	ctx, end := context.WithCancel(r.Context())
	left := b.enterWatch(name, end)
	return r.WithContext(ctx), func() {
		left()
		end()
	}
}

// whenServed calls leave when a request has been served whose handler returns. A watch
// goes on after that: the API server's outer handler calls the rest, so that the stack of
// all handlers is free by then.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/routine/routine.go WithRoutine TaskFrom
func whenServed(ctx context.Context, leave func()) {
	rest := routine.TaskFrom(ctx)
	if rest == nil || rest.Func == nil {
		leave()
		return
	}
	serve := rest.Func
	rest.Func = func() {
		defer leave()
		serve()
	}
}

// byInformer tells whether a request is a watch whose client begins it again when it ends:
// only such clients need bookmarks.
func byInformer(r *http.Request, info *apirequest.RequestInfo) bool {
	bookmarks, err := strconv.ParseBool(r.URL.Query().Get("allowWatchBookmarks"))
	return info.Verb == "watch" && err == nil && bookmarks
}

// needsLittle tells whether the light handler should serve a request. It can serve any
// request to read, but it decodes what it reads for each client anew.
func (h *Handler) needsLittle(ctx context.Context, info *apirequest.RequestInfo, resource schema.GroupResource) bool {
	if info.Subresource != "" {
		return false
	}
	name := resource.String()
	settled := h.full.settled(name, info.APIVersion)
	switch info.Verb {
	case "get", "list":
		return !settled
	case "watch":
		return h.light.requests(name) < fewWatches && (!settled || h.empty(ctx, resource))
	case "deletecollection":
		return !settled && h.empty(ctx, resource)
	default:
		return false
	}
}

// Unused tells whether a resource is one of custom resources of which there are no objects.
// If the datastore does not tell, the resource is not unused.
func (h *Handler) Unused(ctx context.Context, resource schema.GroupResource) bool {
	if _, err := h.definitions.Get(resource.String()); err != nil {
		return false
	}
	return h.empty(ctx, resource)
}

// empty tells whether there is no object of a kind.
func (h *Handler) empty(ctx context.Context, resource schema.GroupResource) bool {
	options, err := h.storage.GetRESTOptions(resource, nil)
	if err != nil {
		return false
	}
	exists, err := h.exists(ctx, path.Join("/", options.StorageConfig.Prefix, options.ResourcePrefix)+"/")
	return err == nil && !exists
}
