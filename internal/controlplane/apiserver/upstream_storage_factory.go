// Follows k8s.io/apiserver v0.37.2, pkg/registry/generic/registry/storage_factory.go.

package apiserver

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/controlplane/lean"
)

// cached is a generic.StorageDecorator. It puts a watch cache before uncached, as
// upstream's StorageWithCacher does, and makes it known to the informers.
//
//upstream:follows k8s.io/apiserver/pkg/registry/generic/registry/storage_factory.go StorageWithCacher
func (d *directStorage) cached(
	config *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	uncached, destroy, err := d.uncached(config, resourcePrefix, keyFunc, newFunc, newListFunc, attributes, triggers, indexers)
	if err != nil {
		return nil, nil, err
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             uncached,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       config.GroupResource,
		EventsHistoryWindow: config.EventsHistoryWindow,
		ResourcePrefix:      resourcePrefix,
		KeyFunc:             keyFunc,
		NewFunc:             newFunc,
		NewListFunc:         newListFunc,
		GetAttrsFunc:        d.hooks.Attributes(attributes),
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               config.Codec,
		Clock:               d.hooks.Clock(),
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, uncached)
	forget, err := d.hooks.Made(lean.WatchCache{
		Cacher: cached, Resource: config.GroupResource, Key: keyFunc, NewObject: newFunc, Prefix: resourcePrefix, Storage: delegator,
	})
	if err != nil {
		delegator.Stop()
		cached.Stop()
		destroy()
		return nil, nil, err
	}
	return delegator, sync.OnceFunc(func() {
		forget()
		delegator.Stop()
		cached.Stop()
		destroy()
	}), nil
}
