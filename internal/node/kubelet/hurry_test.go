package kubelet

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume"
	volumetesting "k8s.io/kubernetes/pkg/volume/testing"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	volumetypes "k8s.io/kubernetes/pkg/volume/util/types"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"
	"k8s.io/mount-utils"
)

// podWith is a pod whose container mounts volumes.
func podWith(volumes ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "7"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	for _, name := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}

// fakeVolumes mounts a volume a while after the begin.
type fakeVolumes struct {
	volumemanager.VolumeManager
	has    container.VolumeMap
	synced bool
	waited int
}

func (f *fakeVolumes) GetMountedVolumesForPod(volumetypes.UniquePodName) container.VolumeMap {
	return f.has
}
func (f *fakeVolumes) ReconcilerStatesHasBeenSynced() bool { return f.synced }
func (f *fakeVolumes) WaitForAttachAndMount(context.Context, *corev1.Pod) error {
	f.waited++
	return errors.New("upstream's words")
}

func TestHurriedVolumes(t *testing.T) {
	const never = time.Hour
	for name, test := range map[string]struct {
		volumes         []string
		has             []string
		started, synced bool
		takes           time.Duration
		begun, waited   int
		within          time.Duration
	}{
		"mounted at once":        {[]string{"token", "data"}, nil, true, true, 5 * time.Millisecond, 1, 0, 20 * time.Millisecond},
		"mounted before":         {[]string{"token"}, []string{"token"}, true, true, never, 0, 1, 0},
		"no volume":              {nil, nil, true, true, never, 0, 1, 0},
		"one is missing":         {[]string{"token", "data"}, []string{"token"}, true, true, never, 1, 1, time.Second},
		"the kubelet just began": {[]string{"token"}, nil, false, true, 0, 0, 1, 0},
		"not all is known yet":   {[]string{"token"}, nil, true, false, 0, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				manager := &fakeVolumes{has: container.VolumeMap{}, synced: test.synced}
				for _, name := range test.has {
					manager.has[name] = container.VolumeInfo{}
				}
				began, begun, attached := time.Now(), 0, false
				hurried := &hurriedVolumes{VolumeManager: manager, started: func() bool { return test.started }}
				hurried.add = func(context.Context, *corev1.Pod) {
					begun++
					time.AfterFunc(test.takes, func() { attached = true })
				}
				hurried.mount = func(context.Context) {
					if attached {
						manager.has = container.VolumeMap{"token": {}, "data": {}}
					}
				}
				err := hurried.WaitForAttachAndMount(t.Context(), podWith(test.volumes...))
				if begun != test.begun || manager.waited != test.waited || (err == nil) != (test.waited == 0) || time.Since(began) > test.within {
					t.Errorf("begun %d times, upstream waited %d times, %v after %v", begun, manager.waited, err, time.Since(began))
				}
			})
		})
	}
}

// noPods is a kubelet without pods.
type noPods struct{}

func (noPods) GetPodByUID(types.UID) (*corev1.Pod, bool)       { return nil, false }
func (noPods) GetPods() []*corev1.Pod                          { return nil }
func (noPods) ShouldPodContainersBeTerminating(types.UID) bool { return false }
func (noPods) ShouldPodRuntimeBeRemoved(types.UID) bool        { return false }

// TestHurryVolumes mounts a volume by upstream's own volume manager, whose loops do not run.
func TestHurryVolumes(t *testing.T) {
	client, plugins := fake.NewClientset(), &volume.VolumePluginMgr{}
	plugin := &volumetesting.FakeBasicVolumePlugin{Plugin: volumetesting.FakeVolumePlugin{PluginName: "data"}} // it supports the volumes of its name
	folder := t.TempDir()
	if err := plugins.InitPlugins([]volume.VolumePlugin{plugin}, nil, volumetesting.NewFakeKubeletVolumeHost(t, folder, client, nil)); err != nil {
		t.Fatal(err)
	}
	manager := volumemanager.NewVolumeManager(true, "edge", noPods{}, noPods{}, client, plugins, &mount.FakeMounter{}, hostutil.NewFakeHostUtil(nil), folder,
		record.NewFakeRecorder(10), volumepathhandler.NewBlockVolumePathHandler(), nil, 0)
	made := new(kubelet.Kubelet)
	field := reflect.ValueOf(made).Elem().FieldByName("volumeManager")
	slot := (*volumemanager.VolumeManager)(unsafe.Pointer(field.UnsafeAddr()))
	*slot = manager
	hurryVolumes(made)
	hurried, ok := (*slot).(*hurriedVolumes)
	if !ok || hurried.started() {
		t.Fatalf("the manager is %T", *slot)
	}
	pod := podWith("data")
	hurried.add(t.Context(), pod)
	for deadline := time.Now().Add(time.Minute); !hurried.mounted(pod); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the volume was not mounted")
		}
		hurried.mount(t.Context())
	}
}
