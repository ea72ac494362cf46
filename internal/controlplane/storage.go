package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/utils/clock"
)

// directStorage makes the API server's storage over a datastore in this
// process, with clients that need no connection. It does what upstream's
// factory does (apiserver/pkg/storage/storagebackend/factory/etcd3.go) but for
// the one line that dials. The allocator of node ports is the only part that
// cannot be told (kubernetes/pkg/registry/core/service/allocator/storage): it
// dials the datastore's socket.
type directStorage struct {
	newClient          func() *kubernetes.Client
	compactionInterval time.Duration
	// shared says that other API servers compact the datastore too.
	shared    bool
	compactor etcd3.Compactor // nil until use
}

// newDirectStorage returns nil if the datastore is not in this process, or the
// user has another one. It sets o so that upstream does not dial what it need
// not.
func newDirectStorage(o *genericoptions.EtcdOptions, c APIServerConfig) *directStorage {
	theirs := !slices.Equal(o.StorageConfig.Transport.ServerList, []string{c.DatastoreURL}) || len(o.EtcdServersOverrides) > 0
	if c.NewDatastoreClient == nil || theirs {
		return nil
	}
	d := &directStorage{newClient: c.NewDatastoreClient, compactionInterval: o.StorageConfig.CompactionInterval, shared: c.SharedDatastore}
	o.StorageConfig.CompactionInterval = 0
	o.StorageConfig.DBMetricPollInterval = 0
	// Without these, those of KMS plugins are left out as well.
	o.SkipHealthEndpoints = o.EncryptionProviderConfigFilepath == ""
	return d
}

// use makes every server of the chain store its objects here. Call it before
// they are built; what runs ends with ctx.
func (d *directStorage) use(ctx context.Context, built *app.Config) error {
	client := d.newClient()
	context.AfterFunc(ctx, func() { client.Close() })
	d.compactor = startCompactor(ctx, client.Client, d.compactionInterval, d.shared)
	// Upstream asks the endpoints of each client whether progress can be asked
	// for; these have none.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(ctx, oneEndpoint{client.Client}, storage.RequestWatchProgress)
	metrics.SetStorageMonitorGetter(func() ([]metrics.Monitor, error) { return []metrics.Monitor{monitor{client.Client}}, nil })

	etcd, kube := built.Options.Etcd, built.KubeAPIs.ControlPlane.Generic
	if etcd.SkipHealthEndpoints {
		addStorageChecks(kube, client.Client, etcd.StorageConfig)
	}
	uncached, err := uncachedResources(etcd)
	if err != nil {
		return err
	}
	for _, getter := range []*generic.RESTOptionsGetter{
		&kube.RESTOptionsGetter,
		&built.ApiExtensions.GenericConfig.RESTOptionsGetter,
		&built.ApiExtensions.ExtraConfig.CRDRESTOptionsGetter,
		&built.Aggregator.GenericConfig.RESTOptionsGetter,
	} {
		*getter = &directOptions{RESTOptionsGetter: *getter, storage: d, uncached: uncached}
	}
	return nil
}

// uncachedResources tells which resources have no watch cache.
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

// directOptions are upstream's options of each resource, with another storage.
type directOptions struct {
	generic.RESTOptionsGetter
	storage  *directStorage
	uncached func(schema.GroupResource) bool
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (d *directOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := d.RESTOptionsGetter.GetRESTOptions(resource, example)
	if options.Decorator = d.storage.cached; d.uncached(resource) {
		options.Decorator = d.storage.uncached
	}
	return options, err
}

// uncached is a generic.StorageDecorator: newETCD3Storage of upstream's factory.
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
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), destroy, nil
	}
	return store, destroy, nil
}

// cached is a generic.StorageDecorator: StorageWithCacher of upstream's
// apiserver/pkg/registry/generic/registry/storage_factory.go.
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
	})
	if err != nil {
		destroy()
		return nil, nil, err
	}
	delegator := cacher.NewCacheDelegator(cached, uncached)
	return delegator, sync.OnceFunc(func() {
		delegator.Stop()
		cached.Stop()
		destroy()
	}), nil
}

// addStorageChecks adds upstream's two checks of the datastore
// (apiserver/pkg/server/options/etcd.go, addEtcdHealthEndpoint).
func addStorageChecks(c *server.Config, client *clientv3.Client, config storagebackend.Config) {
	check := func(name string, timeout time.Duration) healthz.HealthChecker {
		return healthz.NamedGroupedCheck(name, name, func(r *http.Request) error {
			ctx, cancel := context.WithTimeout(r.Context(), timeout)
			defer cancel()
			_, err := client.Get(ctx, path.Join("/", config.Prefix, "health"))
			return err
		})
	}
	c.AddHealthChecks(check("etcd", config.HealthcheckTimeout))
	c.AddReadyzChecks(check("etcd-readiness", config.ReadycheckTimeout))
}

// startCompactor starts upstream's compactor where others have theirs, and else
// the one below, until ctx ends. An interval of zero leaves it to the user.
func startCompactor(ctx context.Context, client *clientv3.Client, interval time.Duration, shared bool) etcd3.Compactor {
	if shared {
		c := etcd3.NewCompactor(client, interval, clock.RealClock{}, nil)
		context.AfterFunc(ctx, c.Stop)
		return c
	}
	c := &compactor{}
	if interval > 0 {
		go c.run(ctx, client, interval)
	}
	return c
}

// compactor lets the datastore forget what is older than an interval, and knows
// what it has forgotten, for the watch caches. Upstream's keeps that in a key of
// the datastore, for several API servers to agree (etcd3/compact.go); this
// datastore has one.
type compactor struct{ revision atomic.Int64 }

// CompactRevision implements etcd3.Compactor.
func (c *compactor) CompactRevision() int64 { return c.revision.Load() }

func (c *compactor) run(ctx context.Context, client *clientv3.Client, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for old := int64(0); ; {
		now, err := client.Get(ctx, "compact_rev_key")
		if err == nil && old > 0 && old < now.Header.Revision {
			if _, err = client.Compact(ctx, old); err == nil {
				c.revision.Store(old)
			}
		}
		if err == nil {
			old = now.Header.Revision
		} else if ctx.Err() == nil {
			klog.ErrorS(err, "Failed to compact the datastore")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// oneEndpoint is a client with an endpoint.
type oneEndpoint struct{ *clientv3.Client }

// Endpoints hides that of clientv3.Client.
func (oneEndpoint) Endpoints() []string { return []string{"in process"} }

// monitor tells the metrics how large the datastore is.
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
