package apiserver

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	registry "k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/controlplane/customresources"
)

// serveCustomResources puts kedge's handler of custom resources before the server for
// CustomResourceDefinitions, and makes the informer of that server keep equal parts of
// schemas once. Call it before another server delegates to this one.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer.UnprotectedHandler
func serveCustomResources(server *genericapiserver.GenericAPIServer, config apiextensionsapiserver.CompletedConfig, definitions informers.CustomResourceDefinitionInformer, direct *directStorage) error {
	if err := customresources.Share(definitions.Informer()); err != nil {
		return err
	}
	generic, extra := config.GenericConfig, config.ExtraConfig
	c := customresources.Config{
		Rest: server.Handler.Director, Definitions: definitions, Uncached: registry.UndecoratedStorage,
		Storage:   extra.CRDRESTOptionsGetter,
		Admission: generic.AdmissionControl, Authorizer: generic.Authorization.Authorizer,
		ServiceResolver: extra.ServiceResolver, AuthResolverWrapper: extra.AuthResolverWrapper,
		RequestTimeout: generic.RequestTimeout, MinRequestTimeout: time.Duration(generic.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: generic.MaxRequestBodyBytes, OpenAPI: generic.OpenAPIV3Config,
	}
	if direct != nil {
		c.Uncached, c.Exists = direct.uncached, direct.exists
	}
	handler, err := customresources.New(c)
	if err != nil {
		return err
	}
	server.Handler.Director = handler
	server.RegisterDestroyFunc(handler.Close)
	return nil
}

// exists tells whether the datastore has a key with a prefix. It asks only the member of
// etcd in this process, if there is one.
func (d *directStorage) exists(ctx context.Context, prefix string) (bool, error) {
	response, err := d.client.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly(), clientv3.WithSerializable())
	if err != nil {
		return false, err
	}
	return len(response.Kvs) > 0, nil
}
