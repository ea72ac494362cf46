// Follows k8s.io/apiserver v0.37.2, pkg/server/options/etcd.go.

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/value"
)

// addStorageChecks adds the two checks of the datastore that upstream's
// addEtcdHealthEndpoint adds.
//
//upstream:follows k8s.io/apiserver/pkg/server/options/etcd.go EtcdOptions.addEtcdHealthEndpoint
func addStorageChecks(c *server.Config, client *clientv3.Client, config storagebackend.Config) {
	check := func(name string, timeout time.Duration) healthz.HealthChecker {
		return healthz.NamedGroupedCheck(name, name, func(r *http.Request) error {
			ctx, cancel := context.WithTimeout(r.Context(), timeout)
			defer cancel()
			return probe(ctx, client, config.Prefix)
		})
	}
	c.AddHealthChecks(check("etcd", config.HealthcheckTimeout))
	c.AddReadyzChecks(check("etcd-readiness", config.ReadycheckTimeout))
}

// uncachedResources returns a function that tells which resources have no watch cache,
// as upstream's GetRESTOptions finds out.
//
//upstream:follows k8s.io/apiserver/pkg/server/options/etcd.go StorageFactoryRestOptionsFactory.GetRESTOptions
func uncachedResources(o *genericoptions.EtcdOptions) (func(schema.GroupResource) bool, error) {
	sizes, err := genericoptions.ParseWatchCacheSizes(o.WatchCacheSizes)
	if err != nil {
		return nil, fmt.Errorf("read watch cache sizes: %w", err)
	}
	return func(resource schema.GroupResource) bool {
		size, ok := sizes[resource]
		return !o.EnableWatchCache || ok && size == 0
	}, nil
}

// directOptions returns upstream's options of each resource with another storage.
//
//upstream:follows k8s.io/apiserver/pkg/server/options/etcd.go StorageFactoryRestOptionsFactory.GetRESTOptions
type directOptions struct {
	generic.RESTOptionsGetter
	storage  *directStorage
	uncached func(schema.GroupResource) bool
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (d *directOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := d.RESTOptionsGetter.GetRESTOptions(resource, example)
	switch {
	case d.uncached(resource):
		options.Decorator = d.storage.uncached
	case resource == definitionsResource:
		options.Decorator = d.storage.hooks.Definitions(d.storage.cached, d.storage.uncached)
	default:
		options.Decorator = d.storage.cached
	}
	return options, err
}

// definitionsResource are CustomResourceDefinitions.
var definitionsResource = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// transformedOptions returns upstream's options of each resource with a transformer, as
// upstream's transformerStorageFactory does.
//
//upstream:follows k8s.io/apiserver/pkg/server/options/etcd.go transformerStorageFactory
type transformedOptions struct {
	generic.RESTOptionsGetter
	transformers value.ResourceTransformers
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (t transformedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := t.RESTOptionsGetter.GetRESTOptions(resource, example)
	if transformer := t.transformers.TransformerForResource(resource); err == nil && transformer != nil {
		options.StorageConfig.Transformer = transformer
	}
	return options, err
}
