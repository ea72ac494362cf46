// Package storage does the tasks of local storage that only one server of a
// cluster does: growing claims, binding snapshots, choosing the node of a claim
// that does not wait for a pod, and telling users why a claim waits. The server
// package runs it beside the controllers, on the elected server.
package storage

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	snapshotlisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/namequeue"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Minute
)

// Config is what the controllers need.
type Config struct {
	// Client calls as system:kedge:storage-controller, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Informers is the source of the informers of claims, volumes,
	// StorageClasses, capacities and nodes.
	Informers objectcache.Source
}

// Controllers are the loops of this package. They implement the election package's
// Loops.
type Controllers struct {
	cfg Config
	log *logrus.Entry
}

// New makes the controllers.
func New(cfg Config) *Controllers {
	return &Controllers{cfg, logrus.WithField("component", "storage")}
}

// Lead runs the loops until ctx ends.
func (c *Controllers) Lead(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	client := c.cfg.Client(ctx)
	api, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	snapshots, err := snapshotclient.NewForConfig(localstorage.JSON(client))
	if err != nil {
		return fmt.Errorf("make client of snapshots: %w", err)
	}
	factory, err := c.cfg.Informers(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	custom := snapshotinformers.NewSharedInformerFactoryWithOptions(snapshots, snapshotResync, snapshotinformers.WithTransform(objectcache.WithoutManagedFields))
	defer custom.Shutdown()

	claims := newClaims(ctx, api, snapshots, factory, custom, c.log)
	factory.StartWithContext(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		objectcache.UntilKnown(ctx, func(ctx context.Context) error { return list(ctx, snapshots) })
		custom.Start(ctx.Done())
		claims.run(ctx)
	})
	ready()
	select {
	case <-claims.snapshotted: // never closed in most clusters
	case <-ctx.Done():
		return nil
	}
	binder := newBinder(api, snapshots, factory, custom)
	custom.Start(ctx.Done())
	running.Go(func() { binder.Run(1, ctx.Done(), &running) })
	<-ctx.Done()
	return nil
}

// list asks for one object of each kind of snapshots.
func list(ctx context.Context, client snapshotclient.Interface) error {
	one := metav1.ListOptions{Limit: 1}
	_, contents := client.SnapshotV1().VolumeSnapshotContents().List(ctx, one)
	_, snapshots := client.SnapshotV1().VolumeSnapshots(metav1.NamespaceAll).List(ctx, one)
	_, classes := client.SnapshotV1().VolumeSnapshotClasses().List(ctx, one)
	return cmp.Or(contents, snapshots, classes)
}

// claims handles one claim after the other when something about it has changed,
// and also volumes and contents of snapshots.
type claims struct {
	api    kubernetes.Interface
	custom snapshotclient.Interface
	log    *logrus.Entry
	events record.EventRecorder
	// queue has claims, and volumes and contents of snapshots, which have no namespace.
	queue  namequeue.Queue
	synced []cache.DoneChecker
	// snapshotted is closed once there is a snapshot, or a content of one.
	snapshotted chan struct{}

	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	nodes      corelisters.NodeLister
	classes    storagelisters.StorageClassLister
	capacities storagelisters.CSIStorageCapacityLister
	snapshots  snapshotlisters.VolumeSnapshotLister
	contents   snapshotlisters.VolumeSnapshotContentLister

	told   map[cache.ObjectName]string    // the last Event of a waiting claim
	placed map[cache.ObjectName]time.Time // when a node was chosen for it
}

func newClaims(ctx context.Context, api kubernetes.Interface, client snapshotclient.Interface, factory informers.SharedInformerFactory, custom snapshotinformers.SharedInformerFactory, log *logrus.Entry) *claims {
	core, storage := factory.Core().V1(), factory.Storage().V1()
	snapshotted := make(chan struct{})
	hasSnapshots := sync.OnceFunc(func() { close(snapshotted) })
	c := &claims{
		api:         api,
		custom:      client,
		log:         log,
		events:      events.NewRecorder(ctx, api, "kedge-storage", ""),
		queue:       namequeue.New("storage", firstRetry, lastRetry),
		claims:      core.PersistentVolumeClaims().Lister(),
		volumes:     core.PersistentVolumes().Lister(),
		nodes:       core.Nodes().Lister(),
		classes:     storage.StorageClasses().Lister(),
		capacities:  storage.CSIStorageCapacities().Lister(),
		snapshots:   custom.Snapshot().V1().VolumeSnapshots().Lister(),
		contents:    custom.Snapshot().V1().VolumeSnapshotContents().Lister(),
		snapshotted: snapshotted,
		told:        map[cache.ObjectName]string{},
		placed:      map[cache.ObjectName]time.Time{},
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		core.PersistentVolumeClaims().Informer():  objectcache.OnChange(c.queue.AddObject),
		core.PersistentVolumes().Informer():       objectcache.OnChange(c.volumeChanged),
		core.Nodes().Informer():                   cache.ResourceEventHandlerFuncs{AddFunc: c.nodeChanged, UpdateFunc: c.nodeUpdated, DeleteFunc: c.nodeChanged},
		storage.CSIStorageCapacities().Informer(): objectcache.OnChange(c.capacityChanged),
		storage.StorageClasses().Informer():       cache.ResourceEventHandlerFuncs{},
		custom.Snapshot().V1().VolumeSnapshotContents().Informer(): objectcache.OnChange(func(content any) {
			hasSnapshots()
			c.contentChanged(content)
		}),
		custom.Snapshot().V1().VolumeSnapshots().Informer(): objectcache.OnChange(func(any) {
			hasSnapshots()
			c.addPending() // the snapshot may be the source of a claim
		}),
	} {
		// Adding a handler fails only on an informer that has stopped.
		_, _ = informer.AddEventHandler(handler)
		c.synced = append(c.synced, informer.HasSyncedChecker())
	}
	return c
}

func (c *claims) run(ctx context.Context) {
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	if !cache.WaitFor(ctx, "", c.synced...) {
		return
	}
	c.queue.Work(ctx, c.sync, func(name cache.ObjectName, err error) { c.log.Warnf("%s: %v", name, err) })
}
