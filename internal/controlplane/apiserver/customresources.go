package apiserver

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	registry "k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/controlplane/customresources"
)

// newExtensionsServer makes the server for CustomResourceDefinitions, as upstream does. It
// serves custom resources by kedge's handler, which it returns too. Its informer keeps equal
// parts of schemas once. direct is nil if the datastore is not in this process. Call it
// before another server delegates to this one.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go GenericAPIServer.UnprotectedHandler
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go completedConfig.New
func newExtensionsServer(config apiextensionsapiserver.CompletedConfig, delegate genericapiserver.DelegationTarget, direct *directStorage) (*apiextensionsapiserver.CustomResourceDefinitions, *customresources.Handler, error) {
	generic, extra := config.GenericConfig, config.ExtraConfig
	c := customresources.Config{
		Uncached:  registry.UndecoratedStorage,
		Storage:   extra.CRDRESTOptionsGetter,
		Admission: generic.AdmissionControl, Authorizer: generic.Authorization.Authorizer,
		ServiceResolver: extra.ServiceResolver, AuthResolverWrapper: extra.AuthResolverWrapper,
		RequestTimeout: generic.RequestTimeout, MinRequestTimeout: time.Duration(generic.MinRequestTimeout) * time.Second,
		MaxRequestBodyBytes: generic.MaxRequestBodyBytes,
	}
	if direct != nil {
		c.Uncached, c.Exists = direct.uncached, direct.exists
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
	return server, handler, nil
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
