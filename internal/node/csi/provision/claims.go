package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/namequeue"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	// firstRetry and lastRetry are the shortest and longest wait between attempts. What makes
	// an attempt fail, such as a full disk, may be corrected soon.
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
	// workers is small because a node usually has one disk.
	workers = 2
)

// claims makes the volumes of claims that the scheduler has given to this node, and deletes released
// volumes.
//
// It replaces upstream's sig-storage-lib-external-provisioner, which is meant for a process of its
// own. Its constructor writes to client-go's scheme, which has no lock, while all of this process
// reads it (controller/controller.go, NewProvisionController). When idle it polls
// (csi-lib-utils/slowset, Run).
//
//upstream:relies-on sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/controller.go NewProvisionController
type claims struct {
	Config
	api       kubernetes.Interface
	snapshots snapshotclient.Interface
	// changed is called when a volume was made or deleted.
	changed func()

	log    *logrus.Entry
	events record.EventRecorder
	// queue has claims and volumes. Volumes have no namespace.
	queue   namequeue.Queue
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	// unsaved has the volumes, by claim, that the driver made and that have no PersistentVolume
	// yet.
	unsaved sync.Map
	// told has the last fault of each claim and volume that was logged.
	told sync.Map
}

func newClaims(cfg Config, api kubernetes.Interface, snapshots snapshotclient.Interface, changed func()) *claims {
	return &claims{Config: cfg, api: api, snapshots: snapshots, changed: changed, log: logrus.WithField("component", "provisioner")}
}

// Name implements component.Component.
func (*claims) Name() string { return "claims" }

// Run implements component.Component.
func (c *claims) Run(ctx context.Context, ready func()) error {
	ctx, factory, end, err := c.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	c.events = events.NewRecorder(ctx, c.api, localstorage.Driver, c.Node)
	c.queue = namequeue.New("provisioner", firstRetry, lastRetry)
	core, classes := factory.Core().V1(), factory.Storage().V1().StorageClasses()
	c.claims, c.volumes, c.classes = core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(), classes.Lister()
	handler := cache.FilteringResourceEventHandler{FilterFunc: c.isMine, Handler: objectcache.OnChange(c.queue.AddObject)}
	synced := []cache.DoneChecker{classes.Informer().HasSyncedChecker()}
	for _, informer := range []cache.SharedIndexInformer{core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer()} {
		// Adding a handler fails only on an informer that has stopped.
		_, _ = informer.AddEventHandler(handler)
		synced = append(synced, informer.HasSyncedChecker())
	}
	factory.StartWithContext(ctx)
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	ready()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			c.queue.Work(ctx, c.look, c.tell)
		})
	}
	running.Wait()
	return nil
}

// isMine tells whether a claim is to get its volume on this node, or whether a volume is on this
// node.
func (c *claims) isMine(object any) bool {
	switch object := objectcache.Latest(object).(type) {
	case *corev1.PersistentVolumeClaim:
		return localstorage.Provisions(object.Annotations[localstorage.ProvisionerAnnotation]) && object.Annotations[localstorage.NodeAnnotation] == c.Node
	case *corev1.PersistentVolume:
		node, ours := localstorage.NodeOf(object)
		return ours && node == c.Node
	}
	return false
}

// look looks at a claim or a volume.
func (c *claims) look(ctx context.Context, name cache.ObjectName) error {
	sync := c.syncClaim
	if name.Namespace == "" {
		sync = c.syncVolume
	}
	err := sync(ctx, name)
	if err == nil {
		c.told.Delete(name)
	}
	return err
}

// tell logs why a claim or a volume will be looked at again: once, until the reason changes.
func (c *claims) tell(name cache.ObjectName, err error) {
	// An error of the driver begins with the name of the volume.
	text := strings.TrimPrefix(err.Error(), name.Name+": ")
	if before, _ := c.told.Swap(name, text); before != text {
		c.log.Warnf("%s: %s", name, text)
	}
}

// syncClaim makes the volume of a claim if it has none.
func (c *claims) syncClaim(ctx context.Context, name cache.ObjectName) error {
	claim, err := c.claims.PersistentVolumeClaims(name.Namespace).Get(name.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	gone := err != nil || claim.DeletionTimestamp != nil || !c.isMine(claim)
	if handle, ok := c.unsaved.Load(name); ok && (gone || handle != volumeName(claim)) {
		if err := c.undo(ctx, handle.(string)); err != nil {
			return err
		}
		c.unsaved.Delete(name)
	}
	if gone || claim.Spec.VolumeName != "" {
		return nil
	}
	if _, err := c.volumes.Get(volumeName(claim)); err == nil {
		c.unsaved.Delete(name)
		return nil
	}
	class, err := c.classes.Get(volumehelpers.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return fmt.Errorf("get StorageClass of claim: %w", err)
	}
	if !localstorage.Provisions(class.Provisioner) {
		return nil
	}
	made, err := c.provision(ctx, claim, class)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		c.events.Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		if isElsewhere(err, claim) {
			return c.giveBack(ctx, claim)
		}
		return err
	case made == nil:
		return nil // for another provisioner
	}
	c.unsaved.Store(name, made.Spec.CSI.VolumeHandle)
	if err := c.save(ctx, made); err != nil {
		return err
	}
	c.unsaved.Delete(name)
	c.events.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", made.Name)
	return nil
}

// undo deletes the data of a volume whose claim was deleted before its PersistentVolume was saved. If
// the PersistentVolume exists after all, it is deleted like any other: a request that got no answer
// may have saved it.
func (c *claims) undo(ctx context.Context, handle string) error {
	_, err := c.api.CoreV1().PersistentVolumes().Get(ctx, handle, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.deleteData(ctx, handle)
	}
	return err
}

// syncVolume deletes the data of a released volume. Until then a finalizer keeps its
// PersistentVolume.
func (c *claims) syncVolume(ctx context.Context, name cache.ObjectName) error {
	volume, err := c.volumes.Get(name.Name)
	if apierrors.IsNotFound(err) || err == nil && !c.isMine(volume) {
		return nil
	}
	if err != nil {
		return err
	}
	protected := slices.Contains(volume.Finalizers, localstorage.VolumeFinalizer)
	switch {
	case volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		if protected { // the user wants to keep the data now
			return localstorage.Unprotect(ctx, c.api, volume)
		}
	case volume.Status.Phase == corev1.VolumeReleased && (protected || volume.DeletionTimestamp == nil):
		if err := c.deleteData(ctx, volume.Spec.CSI.VolumeHandle); err != nil {
			if ctx.Err() == nil {
				c.events.Event(volume, corev1.EventTypeWarning, "VolumeFailedDelete", err.Error())
			}
			return err
		}
		return localstorage.Forget(ctx, c.api, volume)
	case volume.Status.Phase == corev1.VolumeBound && !protected && volume.DeletionTimestamp == nil:
		return localstorage.Protect(ctx, c.api, volume)
	}
	return c.grow(ctx, volume)
}

// grow expands a volume as soon as its PersistentVolume asks for more. The kubelet asks only when a
// pod uses the volume, which is too late where a mounted ext4 cannot grow. The kubelet still asks
// later and reports errors. While another operation on the volume runs, grow returns an error so
// that it is called again.
func (c *claims) grow(ctx context.Context, volume *corev1.PersistentVolume) error {
	_, err := c.Driver.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId:      volume.Spec.CSI.VolumeHandle,
		CapacityRange: &csi.CapacityRange{RequiredBytes: volume.Spec.Capacity.Storage().Value()},
	})
	if status.Code(err) == codes.Aborted {
		return plainly(err)
	}
	if err != nil && volume.Status.Phase == corev1.VolumeBound {
		c.log.Debugf("%s does not grow for now: %v", volume.Name, err)
	}
	return nil
}

// retries returns the rate limiter that upstream's controllers use, with kedge's waits.
func retries() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
}
