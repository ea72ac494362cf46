package kubelet

import (
	"context"
	"reflect"
	"unsafe" // also for go:linkname

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager/populator"
)

// processPodVolumes adds the volumes of a pod to those that are to be mounted. The populator does that for all pods every 0.1 s.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go desiredStateOfWorldPopulator.processPodVolumes desiredStateOfWorldPopulator.findAndAddNewPods
//go:linkname processPodVolumes k8s.io/kubernetes/pkg/kubelet/volumemanager/populator.(*desiredStateOfWorldPopulator).processPodVolumes
func processPodVolumes(populator unsafe.Pointer, ctx context.Context, pod *corev1.Pod)

// mountOrAttachVolumes starts to mount what is to be mounted and is not. The reconciler does that every 0.1 s.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler/reconciler_common.go reconciler.mountOrAttachVolumes reconciler.mountAttachedVolumes
//go:linkname mountOrAttachVolumes k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler.(*reconciler).mountOrAttachVolumes
func mountOrAttachVolumes(reconciler unsafe.Pointer, logger klog.Logger)

// hurryVolumes puts a hurriedVolumes in the place of the volume manager of a kubelet that has not started.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/volumemanager/volume_manager.go volumeManager
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet.go NewMainKubelet Option
func hurryVolumes(k *kubelet.Kubelet) {
	field := reflect.ValueOf(k).Elem().FieldByName("volumeManager")
	slot := (*volumemanager.VolumeManager)(unsafe.Pointer(field.UnsafeAddr()))
	manager := field.Elem().Elem()
	add, mount := manager.FieldByName("desiredStateOfWorldPopulator"), manager.FieldByName("reconciler").Elem().UnsafePointer()
	adder := *(*populator.DesiredStateOfWorldPopulator)(unsafe.Pointer(add.UnsafeAddr()))
	*slot = &hurriedVolumes{
		VolumeManager: *slot,
		started:       adder.HasAddedPods,
		add:           func(ctx context.Context, pod *corev1.Pod) { processPodVolumes(add.Elem().UnsafePointer(), ctx, pod) },
		mount:         func(ctx context.Context) { mountOrAttachVolumes(mount, klog.FromContext(ctx)) },
	}
}
