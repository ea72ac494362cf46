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
func newDirectStorage(o *genericoptions.EtcdOptions, c Config) *directStorage {
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

// oneEndpoint is a client with an endpoint.
type oneEndpoint struct{ *clientv3.Client }

// Endpoints hides that of clientv3.Client.
func (oneEndpoint) Endpoints() []string { return []string{"in process"} }

// useTransformers makes the API server store its own resources by transformers.
// Upstream takes them from a file only (apiserver/pkg/server/options/etcd.go,
// maybeApplyResourceTransformers), which it would read every minute.
func useTransformers(built *app.Config, transformers value.ResourceTransformers) {
	if transformers != nil {
		getter := &built.KubeAPIs.ControlPlane.Generic.RESTOptionsGetter
		*getter = transformedOptions{*getter, transformers}
	}
}
