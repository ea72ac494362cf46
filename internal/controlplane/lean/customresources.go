package lean

import (
	"context"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/controlplane/lean/customresources"
)

// Storage is that of a datastore in this process. It is zero if the datastore is elsewhere.
type Storage struct {
	// Uncached has no watch cache.
	Uncached generic.StorageDecorator
	// Exists tells whether the datastore has a key with a prefix. The answer may be a little old.
	Exists func(ctx context.Context, prefix string) (bool, error)
}

// newExtensionsServer makes the server for CustomResourceDefinitions, as upstream does. It
// serves custom resources by kedge's handler. Its informer keeps equal parts of schemas once. Call it
// before another server delegates to this one.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer.UnprotectedHandler
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go completedConfig.New
func newExtensionsServer(config apiextensionsapiserver.CompletedConfig, delegate genericapiserver.DelegationTarget, stored Storage) (
	*apiextensionsapiserver.CustomResourceDefinitions, func(context.Context, schema.GroupResource) bool, error,
) {
	core, extra := config.GenericConfig, config.ExtraConfig
	c := customresources.Config{
		Uncached: stored.Uncached, Exists: stored.Exists,
		Storage:   extra.CRDRESTOptionsGetter,
		Admission: core.AdmissionControl, Authorizer: core.Authorization.Authorizer,
		ServiceResolver: extra.ServiceResolver, AuthResolverWrapper: extra.AuthResolverWrapper,
		RequestTimeout: core.RequestTimeout, MinRequestTimeout: time.Duration(core.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: core.MaxRequestBodyBytes,
	}
	if c.Uncached == nil {
		c.Uncached = generic.UndecoratedStorage
	}
	extra.CRDRESTOptionsGetter = customresources.Uncached(c.Storage, c.Uncached)
	server, err := config.New(delegate)
	if err != nil {
		return nil, nil, err
	}
	c.Rest, c.Definitions = server.GenericAPIServer.Handler.Director, server.Informers.Apiextensions().V1().CustomResourceDefinitions()
	if err := customresources.Share(c.Definitions.Informer()); err != nil {
		return nil, nil, err
	}
	handler, err := customresources.New(c)
	if err != nil {
		return nil, nil, err
	}
	server.GenericAPIServer.Handler.Director = handler
	server.GenericAPIServer.RegisterDestroyFunc(handler.Close)
	return server, handler.Unused, nil
}
