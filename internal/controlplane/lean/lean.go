// Package lean has what makes upstream's API server small. The apiserver package calls the methods of
// Hooks where upstream's own code would keep or do more. Without Hooks, the server does everything as
// upstream's. `make conformance PLAIN=1` tests such a kedge. If a test fails with one of the two only,
// the fault is here.
//
// The prices were measured by `make bench`. Its README says what each life is.
//
//	trick            saves                                                        writes private state of upstream
//	openapi          105 MB at rest, in the life of an idle server                nothing
//	customresources  11 MiB for each kind of which nobody changes objects         nothing
//	histories        210 MiB of 260 after 1,000 nodes were deleted                the ring of changes in watch caches
//	copies           a second copy of all objects that informers keep             nothing
//	metadata         12 MB of live heap, with 5,000 Services                      nothing
//	renewals         half of the processor time of renewals, with 1,000 nodes     nothing
//	bookmarkClock    6 % of the processor time of an idle server                  nothing
//	shareParameters  1.6 MB at rest                                               nothing
//
// Nothing here may write private state of upstream for less than 10 MiB or 0.2 % of a core in one of the
// lives. CONTRIBUTING.md says the same.
package lean

import (
	"context"
	"net/http"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/utils/clock"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/controlplane/lean/customresources"
	"github.com/kedge-dev/kedge/internal/controlplane/lean/openapi"
	"github.com/kedge-dev/kedge/internal/controlplane/lean/renewals"
)

// Hooks are what one API server does in other ways than upstream's. Nil is upstream's own way.
type Hooks struct {
	documents openapi.Documents
	copies    *oneCopy
	histories histories
	leases    renewals.Leases
}

// New returns the Hooks of an API server that is about to be built.
func New() *Hooks {
	return &Hooks{copies: newOneCopy(), histories: histories{all: map[*history]bool{}}}
}

// Transform is a cache.TransformFunc for all informers of this process.
func (h *Hooks) Transform(object any) (any, error) {
	if h == nil {
		return objectcache.WithoutManagedFields(object)
	}
	return h.copies.transform(object)
}

// Clock is that of watch caches.
func (h *Hooks) Clock() clock.WithTicker {
	if h == nil {
		return clock.RealClock{}
	}
	return bookmarkClock{}
}

// WatchCache is one that was made.
type WatchCache struct {
	*cacher.Cacher
	Resource schema.GroupResource
	// Key returns the key of an object, which begins with Prefix, and NewObject an empty object.
	Key       func(runtime.Object) (string, error)
	NewObject func() runtime.Object
	Prefix    string
	// Storage is what the API server reads and writes: the watch cache, and the datastore behind it.
	Storage storage.Interface
}

// Made is called with each watch cache. The caller calls end when the watch cache ends.
func (h *Hooks) Made(made WatchCache) (end func(), err error) {
	if h == nil {
		return func() {}, nil
	}
	end, err = h.histories.add(made.Cacher, made.Resource)
	if err != nil {
		return nil, err
	}
	h.copies.add(watchCache{get: made.Get, key: made.Key, newFunc: made.NewObject})
	if made.Resource == leasesResource {
		h.leases = renewals.Leases{Storage: made.Storage, Prefix: made.Prefix}
	}
	return end, nil
}

var leasesResource = coordination.Resource("leases")

// Run does what watch caches need from time to time, until ctx ends.
func (h *Hooks) Run(ctx context.Context) {
	if h != nil {
		h.histories.run(ctx)
	}
}

// Definitions chooses the storage of CustomResourceDefinitions: that of other kinds, with a watch cache,
// or that without one. A watch cache keeps the last versions of all definitions, each a MiB, for clients
// that hardly exist: the API server watches them once, and so does the garbage collector.
func (h *Hooks) Definitions(cached, uncached generic.StorageDecorator) generic.StorageDecorator {
	if h == nil {
		return cached
	}
	return customresources.ForDefinitions(uncached)
}

// Configure changes the configurations of the three servers, before anything is made of them.
func (h *Hooks) Configure(core, extensions, outermost *genericapiserver.Config) {
	if h == nil {
		return
	}
	leanOpenAPI(core, extensions, outermost)
	extensions.LoopbackClientConfig = rest.CopyConfig(extensions.LoopbackClientConfig)
	extensions.LoopbackClientConfig.Wrap(customresources.Lean)
	handlerChain := outermost.BuildHandlerChainFunc
	outermost.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return handlerChain(h.documents.Wrap(handler), c)
	}
}

// Renew makes config's handler answer renewals of Leases in a short way, after all filters. admit is the
// admission of the server that has the Leases.
func (h *Hooks) Renew(config *genericapiserver.Config, admit admission.Interface) {
	if h != nil {
		renewals.Use(config, &h.leases, admit)
	}
}

// Lend lets the server that is made of config have definitions for OpenAPI until takeBack is called.
func (h *Hooks) Lend(config *genericapiserver.Config) (takeBack func()) {
	if h == nil {
		return func() {}
	}
	return openapi.Lend(config.OpenAPIV3Config)
}

// Extensions makes the server for CustomResourceDefinitions. unused tells whether a resource is one of
// custom resources without objects.
func (h *Hooks) Extensions(config apiextensionsapiserver.CompletedConfig, delegate genericapiserver.DelegationTarget, stored Storage) (
	server *apiextensionsapiserver.CustomResourceDefinitions, unused func(context.Context, schema.GroupResource) bool, err error,
) {
	if h == nil {
		server, err = config.New(delegate)
		return server, func(context.Context, schema.GroupResource) bool { return false }, err
	}
	return newExtensionsServer(config, delegate, stored)
}

// Chain is the chain of servers before it runs.
type Chain struct {
	// Core and Extensions are made of these configurations.
	Core, Extensions             *genericapiserver.GenericAPIServer
	CoreConfig, ExtensionsConfig *genericapiserver.Config
	Outermost                    *genericapiserver.GenericAPIServer
	// Definitions is the informer of Extensions, which was not started.
	Definitions informers.CustomResourceDefinitionInformer
}

// Built is called when all APIs of a chain are installed.
func (h *Hooks) Built(c Chain) error {
	if h == nil {
		return nil
	}
	shareParameters(c.Outermost, c.Core, c.Extensions)
	return h.documents.Install(
		openapi.Server{GenericAPIServer: c.Core, V2: c.CoreConfig.OpenAPIConfig, V3: c.CoreConfig.OpenAPIV3Config},
		openapi.Server{GenericAPIServer: c.Extensions, V2: c.ExtensionsConfig.OpenAPIConfig, V3: c.ExtensionsConfig.OpenAPIV3Config},
		c.Definitions, utilfeature.DefaultMutableFeatureGate)
}
