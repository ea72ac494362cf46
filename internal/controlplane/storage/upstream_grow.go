// Follows github.com/kubernetes-csi/external-resizer/v2 v2.3.0, pkg/controller/expand_and_recover.go.
// Follows github.com/kubernetes-csi/external-resizer/v2 v2.3.0, pkg/controller/resize_status.go.
// Follows github.com/kubernetes-csi/external-resizer/v2 v2.3.0, pkg/resizer/trivial_resizer.go.

package storage

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// grow makes the kubelet grow the volume of a claim that asks for more than it has.
// The driver does that on the node. grow does the same as external-resizer with its
// trivial resizer (pkg/controller/expand_and_recover.go,
// pkg/resizer/trivial_resizer.go). That cannot be linked together with Kubernetes:
// its feature gates have the same names as Kubernetes' own, with other stages
// (pkg/features/features.go, init).
//
//upstream:follows github.com/kubernetes-csi/external-resizer/v2/pkg/controller/expand_and_recover.go resizeController.expandAndRecover resizeController.pvCanBeExpanded
//upstream:follows github.com/kubernetes-csi/external-resizer/v2/pkg/resizer/trivial_resizer.go trivialResizer.Resize
//upstream:relies-on github.com/kubernetes-csi/external-resizer/v2/pkg/features/features.go init
func (c *claims) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) error {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	ref := volume.Spec.ClaimRef
	if claim.Status.Phase != corev1.ClaimBound || asked.Cmp(has) <= 0 || ref == nil || ref.UID != claim.UID {
		return nil
	}
	capacity := volume.Spec.Capacity[corev1.ResourceStorage]
	switch claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		// The kubelet must finish what it has begun before it gets another size.
		if allocated := claim.Status.AllocatedResources[corev1.ResourceStorage]; capacity.Cmp(allocated) >= 0 {
			return nil
		}
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		// The kubelet waits until the user asks for less, or for the next change.
		if allocated := claim.Status.AllocatedResources[corev1.ResourceStorage]; asked.Cmp(allocated) == 0 {
			return nil
		}
	}
	claim, err := c.resizing(ctx, claim, asked, corev1.PersistentVolumeClaimControllerResizeInProgress, corev1.PersistentVolumeClaimResizing, "")
	if err != nil {
		return localstorage.IgnoreOutdated(err)
	}
	if capacity.Cmp(asked) < 0 {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": volume.ResourceVersion},
			"spec":     map[string]any{"capacity": corev1.ResourceList{corev1.ResourceStorage: asked}},
		})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		if _, err := c.api.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("set capacity of volume %s: %w", volume.Name, err)
		}
	}
	_, err = c.resizing(ctx, claim, asked, corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimFileSystemResizePending,
		"The volume grows when a pod on its node uses it")
	return localstorage.IgnoreOutdated(err)
}

// resizing writes the progress of growing into the claim's status.
//
//upstream:follows github.com/kubernetes-csi/external-resizer/v2/pkg/controller/resize_status.go resizeController.markControllerResizeInProgress resizeController.markForPendingNodeExpansion
func (c *claims) resizing(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity, status corev1.ClaimResourceStatus,
	condition corev1.PersistentVolumeClaimConditionType, message string) (*corev1.PersistentVolumeClaim, error) {
	wanted := claim.DeepCopy()
	if wanted.Status.AllocatedResources == nil {
		wanted.Status.AllocatedResources = corev1.ResourceList{}
	}
	wanted.Status.AllocatedResources[corev1.ResourceStorage] = size
	if wanted.Status.AllocatedResourceStatuses == nil {
		wanted.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{}
	}
	wanted.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = status
	var conditions []corev1.PersistentVolumeClaimCondition
	for _, existing := range claim.Status.Conditions {
		switch existing.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		default:
			conditions = append(conditions, existing)
		}
	}
	wanted.Status.Conditions = append(conditions, corev1.PersistentVolumeClaimCondition{
		Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message,
	})
	before, err := json.Marshal(claim)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	after, err := json.Marshal(wanted)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	// The patch is made from the types, because the list of conditions is merged.
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, claim)
	if err != nil {
		return nil, fmt.Errorf("make patch: %w", err)
	}
	written, err := c.api.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write the status of claim %s, which grows: %w", claim.Name, err)
	}
	return written, nil
}
