package apiserver

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/registry/generic"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/utils/clock"

	"github.com/kedge-dev/kedge/internal/controlplane/lean"
)

// directStorage makes the API server's storage over a datastore in this process, with
// clients that need no connection. It does what upstream's factory does except for
// the line that dials, see upstream_etcd3.go. Only the allocator of node ports accepts
// no other storage (kubernetes/pkg/registry/core/service/allocator/storage): it dials
// the datastore's socket.
//
//upstream:relies-on k8s.io/kubernetes/pkg/registry/core/service/allocator/storage/storage.go NewEtcd
type directStorage struct {
	newClient          func() *kubernetes.Client
	compactionInterval time.Duration
	// shared says that other API servers compact the datastore too.
	shared    bool
	compactor etcd3.Compactor    // nil until use
	client    *kubernetes.Client // nil until use
	hooks     *lean.Hooks
	damaged   *damagedObjects
}

// newDirectStorage returns nil if the datastore is not in this process, or if the user
// has configured another one. It changes o so that upstream's compactor, metrics and
// checks do not dial the datastore.
//
//upstream:relies-on k8s.io/apiserver/pkg/server/options/etcd.go EtcdOptions.ApplyWithStorageFactoryTo
func newDirectStorage(o *genericoptions.EtcdOptions, datastore Datastore, hooks *lean.Hooks, damaged *damagedObjects) *directStorage {
	theirs := !slices.Equal(o.StorageConfig.Transport.ServerList, []string{datastore.URL}) || len(o.EtcdServersOverrides) > 0
	if datastore.NewClient == nil || theirs {
		return nil
	}
	d := &directStorage{
		newClient: datastore.NewClient, compactionInterval: o.StorageConfig.CompactionInterval, shared: datastore.Shared,
		hooks: hooks, damaged: damaged,
	}
	o.StorageConfig.CompactionInterval = 0
	// Upstream's checks of the datastore and of the user's KMS plugins can only be
	// skipped together.
	o.SkipHealthEndpoints = o.EncryptionProviderConfigFilepath == ""
	return d
}

// use makes every server of the chain store its objects here. Call it before the
// servers are built. Its client and compactor end with ctx.
func (d *directStorage) use(ctx context.Context, built *app.Config) error {
	client := d.newClient()
	d.client = client
	context.AfterFunc(ctx, func() { client.Close() })
	go d.hooks.Run(ctx)
	d.compactor = startCompactor(ctx, client.Client, d.compactionInterval, d.shared)
	// Upstream asks each endpoint of a client whether it supports progress requests.
	// This client has no endpoint, so upstream would find no support.
	//upstream:relies-on k8s.io/apiserver/pkg/storage/feature/feature_support_checker.go defaultFeatureSupportChecker.checkClient
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

// startCompactor starts a compactor that ends with ctx: upstream's if other API servers
// compact the datastore too, and else kedge's. With an interval of zero, the user
// compacts the datastore.
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

// oneEndpoint is a client that names an endpoint.
type oneEndpoint struct{ *clientv3.Client }

// Endpoints hides that of clientv3.Client.
func (oneEndpoint) Endpoints() []string { return []string{"in process"} }

// useTransformers makes the API server encrypt its own resources by transformers.
// Upstream takes transformers only from a file, which it reads every minute
// (apiserver/pkg/server/options/etcd.go, maybeApplyResourceTransformers).
//
//upstream:relies-on k8s.io/apiserver/pkg/server/options/etcd.go EtcdOptions.maybeApplyResourceTransformers
func useTransformers(built *app.Config, transformers value.ResourceTransformers) {
	if transformers != nil {
		getter := &built.KubeAPIs.ControlPlane.Generic.RESTOptionsGetter
		*getter = transformedOptions{*getter, transformers}
	}
}

// stored returns the storage without watch caches. d may be nil.
func (d *directStorage) stored() lean.Storage {
	if d == nil {
		return lean.Storage{}
	}
	return lean.Storage{Uncached: d.uncached, Exists: d.exists}
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
