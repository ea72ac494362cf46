package provision

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	sidecar "github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	// snapshotPatience limits the time for one snapshot, which may be a copy of a whole disk.
	snapshotPatience = time.Hour
	// snapshotResync is upstream's default (cmd/csi-snapshotter/main.go).
	//upstream:relies-on github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter/main.go
	snapshotResync = 15 * time.Minute
	// wholeUID makes the name of a snapshot its prefix and the whole UID of its object.
	wholeUID = -1
)

// newSnapshots returns the component that makes and deletes snapshots of this node's volumes. It is
// upstream's csi-snapshotter, as deployed on each node. A label says which snapshots are this node's.
func newSnapshots(cfg Config, api kubernetes.Interface, client snapshotclient.Interface, changed func()) component.Component {
	return component.Func("snapshots", func(ctx context.Context, ready func()) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ready()
		if err := awaitUse(ctx, cfg, client); err != nil || ctx.Err() != nil {
			return err
		}
		trim := snapshotinformers.WithTransform(objectcache.WithoutManagedFields)
		own := snapshotinformers.NewSharedInformerFactoryWithOptions(client, snapshotResync, trim, snapshotinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = ownContents(cfg.Node)
		}))
		all := snapshotinformers.NewSharedInformerFactoryWithOptions(client, snapshotResync, trim)
		defer own.Shutdown()
		defer all.Shutdown()
		defer cancel()
		contents, classes := own.Snapshot().V1().VolumeSnapshotContents(), all.Snapshot().V1().VolumeSnapshotClasses()
		used := make(chan struct{})
		use := sync.OnceFunc(func() { close(used) })
		// Adding a handler fails only on an informer that has stopped.
		_, _ = contents.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { use() }})
		own.Start(ctx.Done())
		// Most nodes with volumes never have a snapshot, so the controller starts with the
		// first one.
		select {
		case <-used:
		case <-ctx.Done():
			return nil
		}
		controller := sidecar.NewCSISnapshotSideCarController(client, api, localstorage.Driver, contents, classes,
			driver{ctx, cfg.Driver, changed}, nil, snapshotPatience, snapshotResync,
			"snapshot", wholeUID, "", wholeUID, false, retries(), false, nil, nil, nil)
		all.Start(ctx.Done())
		var running sync.WaitGroup
		controller.Run(1, ctx.Done(), &running)
		running.Wait()
		return nil
	})
}

// awaitUse returns when there can be snapshots of this node, or when ctx ends. Most nodes
// have no volumes, and need not watch. Only a node that has a PersistentVolume gets a new
// snapshot. Older ones, whose volumes may be gone, are on the disk or in the API.
func awaitUse(ctx context.Context, cfg Config, client snapshotclient.Interface) error {
	made, err := cfg.Driver.ListSnapshots(ctx, &csi.ListSnapshotsRequest{MaxEntries: 1})
	if err != nil || len(made.GetEntries()) > 0 {
		return nil
	}
	known, err := client.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{LabelSelector: ownContents(cfg.Node), Limit: 1})
	// A new cluster does not know the kind yet.
	if err != nil && !apierrors.IsNotFound(err) || err == nil && len(known.Items) > 0 {
		return nil
	}
	ctx, factory, end, err := cfg.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	used := make(chan struct{})
	use := sync.OnceFunc(func() { close(used) })
	// Adding a handler fails only on an informer that has stopped.
	_, _ = factory.Core().V1().PersistentVolumes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if volume, ok := object.(*corev1.PersistentVolume); ok {
			if node, ours := localstorage.NodeOf(volume); ours && node == cfg.Node {
				use()
			}
		}
	}})
	factory.StartWithContext(ctx)
	select {
	case <-used:
	case <-ctx.Done():
	}
	return nil
}

// ownContents selects the VolumeSnapshotContents of a node.
func ownContents(node string) string {
	return utils.VolumeSnapshotContentManagedByLabel + "=" + node
}

// driver is the snapshotter that upstream's controller calls.
type driver struct {
	ctx     context.Context // ends with the component, unlike the contexts of upstream's controller
	server  csi.ControllerServer
	changed func()
}

var _ snapshotter.Snapshotter = driver{}

func (d driver) CreateSnapshot(ctx context.Context, name, volume string, parameters, secrets map[string]string) (driverName, snapshot string, made time.Time, size int64, ready bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	answer, err := d.server.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{SourceVolumeId: volume, Name: name, Parameters: parameters, Secrets: secrets})
	d.changed()
	if err != nil {
		return "", "", time.Time{}, 0, false, plainly(err)
	}
	s := answer.GetSnapshot()
	return localstorage.Driver, s.GetSnapshotId(), s.GetCreationTime().AsTime(), s.GetSizeBytes(), s.GetReadyToUse(), nil
}

func (d driver) DeleteSnapshot(ctx context.Context, snapshot string, secrets map[string]string) error {
	_, err := d.server.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshot, Secrets: secrets})
	d.changed()
	return plainly(err)
}

// GetSnapshotStatus returns the state of an existing snapshot that a user names.
func (d driver) GetSnapshotStatus(ctx context.Context, snapshot string, secrets map[string]string) (ready bool, made time.Time, size int64, group string, err error) {
	answer, err := d.server.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: snapshot, Secrets: secrets})
	if err != nil {
		return false, time.Time{}, 0, "", plainly(err)
	}
	if len(answer.GetEntries()) == 0 {
		return false, time.Time{}, 0, "", fmt.Errorf("this node has no snapshot %s", snapshot)
	}
	s := answer.Entries[0].GetSnapshot()
	return s.GetReadyToUse(), s.GetCreationTime().AsTime(), s.GetSizeBytes(), "", nil
}
