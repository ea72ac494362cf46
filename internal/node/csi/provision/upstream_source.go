// Follows github.com/kubernetes-csi/external-provisioner/v6 v6.4.0, pkg/controller/controller.go.

package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// allowModeChange allows a snapshot of a file system to become a raw block volume, and the reverse
// (external-provisioner, pkg/controller/controller.go).
//
//upstream:relies-on github.com/kubernetes-csi/external-provisioner/v6/pkg/controller/controller.go annAllowVolumeModeChange
const allowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"

// elsewhere is the message to users for errElsewhere.
const elsewhere = "the claim is a copy and %w: the copy and its pod go to that node"

var (
	// errPopulated means that a volume populator makes the volume of the claim.
	errPopulated = errors.New("the source is for a volume populator")
	// errElsewhere means that a copy must be made on another node.
	errElsewhere = errors.New("its source is on another node")
)

// source returns the source of a claim's volume: nil, a snapshot, or another claim's volume. The
// checks are those of external-provisioner (pkg/controller/controller.go, getVolumeContentSource).
//
//upstream:follows github.com/kubernetes-csi/external-provisioner/v6/pkg/controller/controller.go csiProvisioner.getVolumeContentSource csiProvisioner.dataSource
func (c *claims) source(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*csi.VolumeContentSource, error) {
	ref := claim.Spec.DataSourceRef
	switch {
	case ref == nil:
		return nil, nil
	case ref.Namespace != nil && *ref.Namespace != "" && *ref.Namespace != claim.Namespace:
		return nil, fmt.Errorf("the claim's source is in the namespace %s: use a source in %s, the claim's namespace", *ref.Namespace, claim.Namespace)
	case ref.Kind == "VolumeSnapshot" && ref.APIGroup != nil && *ref.APIGroup == snapshotv1.GroupName:
		return c.snapshotSource(ctx, claim, ref.Name)
	case ref.Kind == "PersistentVolumeClaim" && (ref.APIGroup == nil || *ref.APIGroup == ""):
		return c.claimSource(ctx, claim, ref.Name)
	default:
		return nil, errPopulated
	}
}

//upstream:follows github.com/kubernetes-csi/external-provisioner/v6/pkg/controller/controller.go csiProvisioner.getSnapshotSource
func (c *claims) snapshotSource(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (*csi.VolumeContentSource, error) {
	api := c.snapshots.SnapshotV1()
	snapshot, err := api.VolumeSnapshots(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("VolumeSnapshot %s, the claim's source, does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("get VolumeSnapshot %s: %w", name, err)
	case snapshot.DeletionTimestamp != nil:
		return nil, fmt.Errorf("VolumeSnapshot %s is being deleted", name)
	case snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil:
		return nil, fmt.Errorf("VolumeSnapshot %s is not ready yet", name)
	}
	content, err := api.VolumeSnapshotContents().Get(ctx, *snapshot.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
	if apierrors.IsForbidden(err) { // this node may not read objects of other nodes
		return nil, fmt.Errorf(elsewhere, errElsewhere)
	}
	if err != nil {
		return nil, fmt.Errorf("get content of VolumeSnapshot %s: %w", name, err)
	}
	bound := content.Spec.VolumeSnapshotRef
	mode, node := volumeMode(claim), content.Labels[utils.VolumeSnapshotContentManagedByLabel]
	switch {
	case bound.UID != snapshot.UID || bound.Namespace != snapshot.Namespace || bound.Name != snapshot.Name:
		return nil, fmt.Errorf("the content of VolumeSnapshot %s belongs to another snapshot", name)
	case content.Spec.Driver != localstorage.Driver:
		return nil, fmt.Errorf("VolumeSnapshot %s was made by the driver %s: restore it with a StorageClass of that driver", name, content.Spec.Driver)
	case node != "" && node != c.Node:
		return nil, fmt.Errorf(elsewhere, errElsewhere)
	case content.Status == nil || content.Status.SnapshotHandle == nil || content.Status.ReadyToUse == nil || !*content.Status.ReadyToUse:
		return nil, fmt.Errorf("VolumeSnapshot %s is not ready yet", name)
	case content.Spec.SourceVolumeMode != nil && *content.Spec.SourceVolumeMode != mode && content.Annotations[allowModeChange] != "true":
		return nil, fmt.Errorf("VolumeSnapshot %s is of a volume with volumeMode %s, and the claim has %s: "+
			"to allow that, an administrator sets the annotation %s=true on VolumeSnapshotContent %s", name, *content.Spec.SourceVolumeMode, mode, allowModeChange, content.Name)
	}
	if size := content.Status.RestoreSize; size != nil {
		if err := tooSmall(claim, "VolumeSnapshot "+name, *resource.NewQuantity(*size, resource.BinarySI)); err != nil {
			return nil, err
		}
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: *content.Status.SnapshotHandle},
	}}, nil
}

//upstream:follows github.com/kubernetes-csi/external-provisioner/v6/pkg/controller/controller.go csiProvisioner.getPVCSource
func (c *claims) claimSource(ctx context.Context, claim *corev1.PersistentVolumeClaim, name string) (*csi.VolumeContentSource, error) {
	original, err := c.api.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("claim %s, the claim's source, does not exist", name)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf(elsewhere, errElsewhere)
	case err != nil:
		return nil, fmt.Errorf("get claim %s: %w", name, err)
	case original.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s, the claim's source, is being deleted", name)
	case original.Status.Phase != corev1.ClaimBound || original.Spec.VolumeName == "":
		return nil, fmt.Errorf("claim %s, the claim's source, has no volume yet", name)
	case volumeMode(original) != volumeMode(claim):
		return nil, fmt.Errorf("claim %s, the claim's source, has volumeMode %s, and this claim has %s", name, volumeMode(original), volumeMode(claim))
	}
	volume, err := c.api.CoreV1().PersistentVolumes().Get(ctx, original.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get volume of claim %s: %w", name, err)
	}
	node, ours := localstorage.NodeOf(volume)
	switch {
	case !ours:
		return nil, fmt.Errorf("the volume of claim %s was made by another driver: %s cannot copy it", name, localstorage.Driver)
	case node != c.Node:
		return nil, fmt.Errorf(elsewhere, errElsewhere)
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != original.UID:
		return nil, fmt.Errorf("claim %s, the claim's source, is not bound to its volume", name)
	}
	if err := tooSmall(claim, "claim "+name, volume.Spec.Capacity[corev1.ResourceStorage]); err != nil {
		return nil, err
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: volume.Spec.CSI.VolumeHandle},
	}}, nil
}
