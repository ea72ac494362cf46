package provision

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

// fakeDriver records the requests that it gets.
type fakeDriver struct {
	csi.UnimplementedControllerServer

	mu       sync.Mutex
	fault    error
	created  []*csi.CreateVolumeRequest
	deleted  []string
	grown    map[string]int64
	capacity int64
}

func (d *fakeDriver) setFault(fault error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// forget clears the record of expanded volumes.
func (d *fakeDriver) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.grown)
}

func (d *fakeDriver) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.grown == nil {
		d.grown = map[string]int64{}
	}
	d.grown[r.VolumeId] = r.CapacityRange.RequiredBytes
	return &csi.ControllerExpandVolumeResponse{}, d.fault
}

func (d *fakeDriver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.created = append(d.created, r)
	if d.fault != nil {
		return nil, d.fault
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.Name, CapacityBytes: r.CapacityRange.RequiredBytes, VolumeContext: map[string]string{"a": "b"}}}, nil
}

func (d *fakeDriver) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted = append(d.deleted, r.VolumeId)
	return &csi.DeleteVolumeResponse{}, d.fault
}

func (d *fakeDriver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.GetCapacityResponse{AvailableCapacity: d.capacity}, d.fault
}

func class(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	class := &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       localstorage.Driver,
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	for _, c := range change {
		c(class)
	}
	return class
}

func claim(name, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid-of-x", Annotations: map[string]string{
			localstorage.ProvisionerAnnotation: localstorage.Driver, localstorage.NodeAnnotation: node,
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("local"),
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(gibibyte, resource.BinarySI)}},
		},
	}
	for _, c := range change {
		c(claim)
	}
	return claim
}

// start runs the component that makes volumes.
func start(t *testing.T, driver *fakeDriver, api kubernetes.Interface, snapshots ...runtime.Object) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	part := newClaims(Config{Node: "here", Driver: driver, Informers: objectcache.Own(api)}, api, snapshotfake.NewSimpleClientset(snapshots...), func() {})
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
}

// TestK3sClass makes the volume of a class with k3s's provisioner, as k3s would.
func TestK3sClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{}
		api := fake.NewClientset(class("local", func(c *storagev1.StorageClass) {
			c.Provisioner, c.Parameters = localstorage.K3sProvisioner, map[string]string{"nodePath": "/srv"}
		}))
		start(t, driver, api)
		theirs := claim("mine", "here", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[localstorage.ProvisionerAnnotation] = localstorage.K3sProvisioner
		})
		if _, err := api.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		volume, err := api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-of-x", metav1.GetOptions{})
		if err != nil || volume.Spec.CSI == nil || volume.Spec.CSI.Driver != localstorage.Driver {
			t.Fatalf("got %+v, %v", volume, err)
		}
		if r := driver.created[0]; r.Parameters["enforce"] != "none" || r.Parameters["baseDirectory"] != "/srv" || len(r.Parameters) != 2 {
			t.Errorf("the driver was asked with %v", r.Parameters)
		}
	})
}

// TestVolume follows a volume from the claim to its end. Claims and volumes of others must stay
// untouched.
func TestVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{}
		elsewhere := claim("other", "elsewhere", func(c *corev1.PersistentVolumeClaim) { c.UID = "other" })
		api := fake.NewClientset(class("local", func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs", "shared": "true"}
			c.MountOptions = []string{"noatime"}
		}), elsewhere)
		start(t, driver, api)
		if _, err := api.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim("mine", "here"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		volume, err := api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-of-x", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(driver.created) != 1 {
			t.Fatalf("created %v", driver.created)
		}
		r := driver.created[0]
		if r.Parameters["shared"] != "true" || len(r.Parameters) != 2 || r.CapacityRange.RequiredBytes != gibibyte ||
			r.VolumeCapabilities[0].GetMount().GetFsType() != "xfs" || r.VolumeCapabilities[0].GetMount().GetMountFlags()[0] != "noatime" ||
			r.VolumeCapabilities[0].GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER ||
			r.AccessibilityRequirements.Requisite[0].Segments[localstorage.TopologyKey] != "here" {
			t.Errorf("got request %v, want the node here", r)
		}
		if node, ours := localstorage.NodeOf(volume); !ours || node != "here" {
			t.Errorf("volume is on %q", node)
		}
		if volume.Spec.CSI.FSType != "xfs" || volume.Spec.CSI.VolumeAttributes["a"] != "b" || volume.Spec.ClaimRef.Name != "mine" ||
			volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || len(volume.Finalizers) != 1 || volume.Finalizers[0] != localstorage.VolumeFinalizer {
			t.Errorf("volume is %v", volume)
		}

		foreign := volume.DeepCopy()
		foreign.Name = "foreign"
		foreign.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "elsewhere"
		foreign.Status.Phase = corev1.VolumeReleased
		if _, err := api.CoreV1().PersistentVolumes().Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// The claim is deleted after a long time in which nothing runs.
		time.Sleep(time.Hour)
		if err := api.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		volume.Status.Phase = corev1.VolumeReleased
		if _, err := api.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), volume, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := api.CoreV1().PersistentVolumes().Get(t.Context(), volume.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the volume is still there: %v", err)
		}
		if len(driver.deleted) != 1 || driver.deleted[0] != "pvc-uid-of-x" {
			t.Errorf("got deleted volumes %v, want pvc-uid-of-x", driver.deleted)
		}
	})
}

// TestFaults checks that users are told what to do, and whether another node is asked.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		fault     error
		change    func(*corev1.PersistentVolumeClaim)
		event     string
		givenBack bool
		attempts  bool // whether the same node tries again
	}{
		"selector":       {change: func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, event: "selector"},
		"no room":        {fault: status.Error(codes.ResourceExhausted, "there is room for 1 GiB"), event: "there is room for 1 GiB", givenBack: true},
		"no enforcement": {fault: status.Error(codes.FailedPrecondition, "use local-unlimited"), event: "use local-unlimited", attempts: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				driver := &fakeDriver{fault: test.fault}
				api := fake.NewClientset(class("local"), claim("mine", "here", func(c *corev1.PersistentVolumeClaim) {
					if test.change != nil {
						test.change(c)
					}
				}))
				// Event names contain the time, which stands still here, so a map keeps one of each.
				events := map[string]string{}
				api.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
					event := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
					events[event.Reason] = event.Message
					return true, event, nil
				})
				start(t, driver, api)
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := events["ProvisioningFailed"]; !strings.Contains(got, test.event) || strings.Contains(got, "rpc error") {
					t.Errorf("no event has %q: %v", test.event, events)
				}
				got, err := api.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "mine", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if back := got.Annotations[localstorage.NodeAnnotation] == ""; back != test.givenBack {
					t.Errorf("given back to the scheduler: %v", back)
				}
				if again := len(driver.created) > 1; again != test.attempts {
					t.Errorf("got %d requests to the driver, want several: %t", len(driver.created), test.attempts)
				}
			})
		})
	}
}

// TestUnsaved makes the API refuse the PersistentVolume until the claim is deleted. Nothing may be
// left of the volume.
func TestUnsaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{}
		api := fake.NewClientset(class("local"), claim("mine", "here"))
		api.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("not now")
		})
		start(t, driver, api)
		time.Sleep(time.Minute)
		if err := api.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lastRetry)
		synctest.Wait()
		if len(driver.created) < 2 || len(driver.deleted) != 1 || driver.deleted[0] != "pvc-uid-of-x" {
			t.Errorf("created %d times, deleted %v", len(driver.created), driver.deleted)
		}
	})
}

// TestPolicy changes a volume's policy to keep its data, and back.
func TestPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{}
		api := fake.NewClientset(class("local"), claim("mine", "here"))
		start(t, driver, api)
		time.Sleep(time.Second)
		for _, policy := range []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete} {
			volume, err := api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-of-x", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			volume.Spec.PersistentVolumeReclaimPolicy, volume.Status.Phase = policy, corev1.VolumeBound
			if _, err := api.CoreV1().PersistentVolumes().Update(t.Context(), volume, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if volume, err = api.CoreV1().PersistentVolumes().Get(t.Context(), volume.Name, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if protected := len(volume.Finalizers) == 1; protected != (policy == corev1.PersistentVolumeReclaimDelete) {
				t.Errorf("policy %s: got finalizers %v, want one for Delete and none otherwise", policy, volume.Finalizers)
			}
		}
		if len(driver.deleted) != 0 {
			t.Errorf("got deleted volumes %v, want none", driver.deleted)
		}
	})
}

// TestGrow raises the capacity of a PersistentVolume, as the cluster's storage controller does when
// its claim asks for more.
func TestGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{}
		api := fake.NewClientset(class("local"), claim("mine", "here"))
		start(t, driver, api)
		time.Sleep(time.Second)
		volumes := api.CoreV1().PersistentVolumes()
		volume, err := volumes.Get(t.Context(), "pvc-uid-of-x", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// At first another operation on the volume runs.
		driver.setFault(status.Error(codes.Aborted, "busy"))
		volume.Spec.Capacity[corev1.ResourceStorage], volume.Status.Phase = resource.MustParse("2Gi"), corev1.VolumeBound
		if _, err := volumes.Update(t.Context(), volume, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		driver.setFault(nil)
		driver.forget()
		time.Sleep(2 * firstRetry)
		synctest.Wait()
		if got := driver.grown["pvc-uid-of-x"]; got != 2*gibibyte {
			t.Errorf("got size %d after growing, want %d", got, int64(2*gibibyte))
		}
	})
}
