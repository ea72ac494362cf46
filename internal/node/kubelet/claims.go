package kubelet

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// claimsOnly leaves out what upstream does about ResourceClaims for pods that have none. Upstream writes a file, and waits for
// the disk, whenever such a pod starts, and again when it has ended. On a full disk no pod could end, and so none could
// be evicted.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/cm/dra/manager.go Manager.prepareResources Manager.unprepareResourcesForPod Manager.unprepareResources
type claimsOnly struct{ cm.ContainerManager }

// PrepareDynamicResources implements cm.ContainerManager.
func (c claimsOnly) PrepareDynamicResources(ctx context.Context, pod *corev1.Pod) error {
	if !hasClaims(pod) {
		return nil
	}
	return c.ContainerManager.PrepareDynamicResources(ctx, pod)
}

// UnprepareDynamicResources implements cm.ContainerManager.
func (c claimsOnly) UnprepareDynamicResources(ctx context.Context, pod *corev1.Pod) error {
	if !hasClaims(pod) && !c.PodMightNeedToUnprepareResources(pod.UID) {
		return nil
	}
	return c.ContainerManager.UnprepareDynamicResources(ctx, pod)
}

func hasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}
