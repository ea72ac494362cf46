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
	"k8s.io/kubernetes/pkg/apis/coordination"

	"github.com/kedge-dev/kedge/internal/controlplane/apiserver/renewals"
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
		GetAttrsFunc:        attributes,
		IndexerFuncs:        triggers,
		Indexers:            indexers,
		Codec:               config.Codec,
		Clock:               bookmarkClock{},
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	forgotten, err := d.histories.add(cached, config.GroupResource)
	if err != nil {
		cached.Stop()
		destroy()
		return nil, nil, err
	}
	d.copies.add(watchCache{get: cached.Get, key: keyFunc, newFunc: newFunc})
	delegator := cacher.NewCacheDelegator(cached, uncached)
	if config.GroupResource == leasesResource {
		d.leases = renewals.Leases{Storage: delegator, Prefix: resourcePrefix}
	}
	return delegator, sync.OnceFunc(func() {
		forgotten()
		delegator.Stop()
		cached.Stop()
		destroy()
	}), nil
}

var leasesResource = coordination.Resource("leases")
