package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

// hurriedVolumes mounts the volumes of a pod as soon as the kubelet wants to start it. Upstream's volume manager has two loops of 0.1 s, and the
// kubelet asks it every 0.3 s, so each pod with a volume would start 0.3 s later. Nearly each pod has one: the token of its service account.
type hurriedVolumes struct {
	volumemanager.VolumeManager
	// started tells whether the manager knows the pods that were there before the kubelet.
	started func() bool
	// add adds the volumes of a pod to those that are to be mounted. mount begins the next step of each volume that is not mounted: it is
	// attached first, even if that takes nothing. Upstream's loops may do the same at the same time, because each operation of a volume excludes
	// others of the same volume.
	add   func(ctx context.Context, pod *corev1.Pod)
	mount func(ctx context.Context)
}

// short is how often a pod's volumes are looked at. If they are not mounted after a third of a second, upstream's way takes over.
var short = wait.Backoff{Duration: 2 * time.Millisecond, Factor: 1.5, Steps: 12}

// WaitForAttachAndMount implements volumemanager.VolumeManager.
func (v *hurriedVolumes) WaitForAttachAndMount(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil || !v.started() || !v.ReconcilerStatesHasBeenSynced() || v.mounted(pod) {
		return v.VolumeManager.WaitForAttachAndMount(ctx, pod)
	}
	v.add(ctx, pod)
	err := wait.ExponentialBackoffWithContext(ctx, short, func(ctx context.Context) (bool, error) {
		if v.mounted(pod) {
			return true, nil
		}
		v.mount(ctx)
		return false, nil
	})
	if err != nil {
		return v.VolumeManager.WaitForAttachAndMount(ctx, pod) // it has the words for what is missing
	}
	return nil
}

// mounted tells whether all volumes of a pod are mounted.
func (v *hurriedVolumes) mounted(pod *corev1.Pod) bool {
	mounts, devices, _ := volumeutil.GetPodVolumeNames(pod, false)
	has := v.GetMountedVolumesForPod(volumeutil.GetUniquePodName(pod))
	for name := range mounts.Union(devices) {
		if _, ok := has[name]; !ok {
			return false
		}
	}
	return true
}
