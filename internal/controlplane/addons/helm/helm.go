// Package helm carries out HelmCharts and HelmChartConfigs, k3s's kinds: Helm's own
// library installs, upgrades, rolls back and removes their charts, in this process.
// The server package runs it on the elected server. As long as there is no
// HelmChart, it only watches for one.
package helm

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/namequeue"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// workers are few, because few charts wait for their pods at the same time.
	workers = 2
)

// Config is what a Helm needs.
type Config struct {
	// Charts is the folder of charts on this server.
	Charts string
	// Server is the name of this server.
	Server string
	// Client may do everything, because charts may. Its requests end with ctx.
	Client func(ctx context.Context) *rest.Config
}

// Helm manages HelmCharts. It implements the election package's Loops: one server at
// a time runs it.
type Helm struct{ cfg Config }

// New makes a Helm.
func New(cfg Config) *Helm {
	// This is the field manager of `helm`. By default Helm uses the name of the
	// executable, and then the command helm would have conflicts with what kedge
	// installed.
	kube.ManagedFieldsManager = "helm"
	return &Helm{cfg}
}

// controller is the state of one term.
type controller struct {
	Config
	log    *logrus.Entry
	config *rest.Config
	api    kubernetes.Interface
	client dynamic.Interface
	events record.EventRecorder

	queue namequeue.Queue
}

// Lead manages HelmCharts until ctx ends.
func (h *Helm) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Only JSON is used: these kinds and those of charts have no other encoding.
	config := rest.CopyConfig(h.cfg.Client(ctx))
	config.ContentConfig = rest.ContentConfig{}
	c := &controller{Config: h.cfg, log: logrus.WithField("component", "helm"), config: config}
	var err error
	if c.client, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if c.api, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	c.queue = namequeue.New("helm", firstRetry, lastRetry)
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	used := make(chan struct{})
	use := sync.OnceFunc(func() { close(used) })
	watcher, err := metadata.NewForConfig(h.cfg.Client(ctx))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	charts := informer(watcher, chartResource, func(object any) { use(); c.queue.AddObject(object) })
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		objectcache.UntilKnown(ctx, func(ctx context.Context) error {
			_, err := watcher.Resource(chartResource).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
		charts.RunWithContext(ctx)
	})
	ready()
	// Most clusters never have a HelmChart.
	select {
	case <-used:
	case <-ctx.Done():
		return nil
	}
	c.events = events.NewRecorder(ctx, c.api, "kedge-helm", h.cfg.Server)
	// A HelmChartConfig has the name of its HelmChart.
	configs := informer(watcher, configResource, c.queue.AddObject)
	running.Go(func() { configs.RunWithContext(ctx) })
	for range workers {
		running.Go(func() {
			c.queue.Work(ctx, c.sync, func(name cache.ObjectName, err error) { c.log.Warnf("HelmChart %s: %v", name, err) })
		})
	}
	<-ctx.Done()
	return nil
}

// informer returns an informer that calls change when the specification of an
// object changes. Changes of the status do not count. It keeps only metadata,
// because the objects may contain charts.
func informer(client metadata.Interface, resource schema.GroupVersionResource, change func(object any)) cache.SharedIndexInformer {
	informer := metadatainformer.NewFilteredMetadataInformer(client, resource, corev1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	// Both fail only on an informer that has started.
	_ = informer.SetTransform(objectcache.WithoutManagedFields)
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: change,
		UpdateFunc: func(old, object any) {
			before, after := old.(*metav1.PartialObjectMetadata), object.(*metav1.PartialObjectMetadata)
			if before.Generation != after.Generation || !before.DeletionTimestamp.Equal(after.DeletionTimestamp) || !maps.Equal(before.Annotations, after.Annotations) {
				change(object)
			}
		},
		DeleteFunc: change,
	})
	return informer
}
