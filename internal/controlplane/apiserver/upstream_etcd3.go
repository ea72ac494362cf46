// Follows k8s.io/apiserver v0.37.2, pkg/storage/storagebackend/factory/etcd3.go.

package apiserver

import (
	"context"
	"path"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// uncached is a generic.StorageDecorator. It does what upstream's newETCD3Storage does,
// with a client that needs no connection, and leaves the compactor and the metrics to
// directStorage.use.
//
//upstream:follows k8s.io/apiserver/pkg/storage/storagebackend/factory/etcd3.go newETCD3Storage
func (d *directStorage) uncached(
	config *storagebackend.ConfigForResource, resourcePrefix string,
	_ func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
	_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	client := d.newClient()
	client.KV = etcd3.NewETCDLatencyTracker(client.KV)
	transformer := config.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := storage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	deletesCorrupt := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if deletesCorrupt {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	store, err := etcd3.New(client, d.compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix,
		config.GroupResource, transformer, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	destroy := sync.OnceFunc(func() {
		store.Close()
		client.Close()
	})
	if deletesCorrupt {
		deleting := etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource)
		return d.newSieve(deleting, config.GroupResource, config.Prefix, resourcePrefix, newFunc), destroy, nil
	}
	return store, destroy, nil
}

// probe asks the datastore for a key, as upstream's etcd3ProberMonitor.Probe does.
//
//upstream:follows k8s.io/apiserver/pkg/storage/storagebackend/factory/etcd3.go etcd3ProberMonitor.Probe
func probe(ctx context.Context, client *clientv3.Client, prefix string) error {
	_, err := client.Get(ctx, path.Join("/", prefix, "health"))
	return err
}

// monitor tells the metrics how large the datastore is, as upstream's
// etcd3ProberMonitor does.
//
//upstream:follows k8s.io/apiserver/pkg/storage/storagebackend/factory/etcd3.go etcd3ProberMonitor.Monitor
type monitor struct{ client *clientv3.Client }

// Monitor implements metrics.Monitor.
func (m monitor) Monitor(ctx context.Context) (metrics.StorageMetrics, error) {
	status, err := m.client.Status(ctx, "")
	if err != nil {
		return metrics.StorageMetrics{}, err
	}
	return metrics.StorageMetrics{Size: status.DbSize}, nil
}

// Close implements metrics.Monitor.
func (monitor) Close() error { return nil }
