package provision

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
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

	"github.com/kedge-dev/kedge/internal/csi/local"
	"github.com/kedge-dev/kedge/internal/objectcache"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

// fakeDriver notes what it is asked for.
type fakeDriver struct {
	csi.UnimplementedControllerServer

	mu       sync.Mutex
	fault    error
	created  []*csi.CreateVolumeRequest
	deleted  []string
	capacity int64
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
		Provisioner:       local.Driver,
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
			local.ProvisionerAnnotation: local.Driver, local.NodeAnnotation: node,
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

// start runs the part that makes volumes.
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

// TestVolume follows a volume from the claim to its end, and sees others' claims
// and volumes left alone.
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
		if r.Parameters["shared"] != "true" || len(r.Parameters) != 1 || r.CapacityRange.RequiredBytes != gibibyte ||
			r.VolumeCapabilities[0].GetMount().GetFsType() != "xfs" || r.VolumeCapabilities[0].GetMount().GetMountFlags()[0] != "noatime" ||
			r.VolumeCapabilities[0].GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER ||
			r.AccessibilityRequirements.Requisite[0].Segments[local.TopologyKey] != "here" {
			t.Errorf("asked for %v", r)
		}
		if node, ours := local.NodeOf(volume); !ours || node != "here" {
			t.Errorf("volume is on %q", node)
		}
		if volume.Spec.CSI.FSType != "xfs" || volume.Spec.CSI.VolumeAttributes["a"] != "b" || volume.Spec.ClaimRef.Name != "mine" ||
			volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || len(volume.Finalizers) != 1 || volume.Finalizers[0] != local.VolumeFinalizer {
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
			t.Errorf("deleted %v", driver.deleted)
		}
	})
}

// TestFaults tells users what they can do, and whom to ask next.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		fault      error
		parameters map[string]string
		change     func(*corev1.PersistentVolumeClaim)
		event      string
		givenBack  bool
		attempts   bool // whether it is tried again
	}{
		"selector":          {change: func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, event: "selector"},
		"no room":           {fault: status.Error(codes.ResourceExhausted, "there is room for 1 GiB"), event: "there is room for 1 GiB", givenBack: true},
		"no enforcement":    {fault: status.Error(codes.FailedPrecondition, "use local-unlimited"), event: "use local-unlimited", attempts: true},
		"unknown parameter": {parameters: map[string]string{"csi.storage.k8s.io/x": ""}, event: "csi.storage.k8s.io/x"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				driver := &fakeDriver{fault: test.fault}
				api := fake.NewClientset(class("local", func(c *storagev1.StorageClass) { c.Parameters = test.parameters }), claim("mine", "here", func(c *corev1.PersistentVolumeClaim) {
					if test.change != nil {
						test.change(c)
					}
				}))
				// Events have the time in their names, which stands still here.
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
				if back := got.Annotations[local.NodeAnnotation] == ""; back != test.givenBack {
					t.Errorf("given back to the scheduler: %v", back)
				}
				if again := len(driver.created) > 1; again != test.attempts {
					t.Errorf("asked %d times", len(driver.created))
				}
			})
		})
	}
}

// TestUnsaved has the API refuse the volume's object until its claim is deleted:
// nothing is left of it.
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

// TestPolicy has a user keep the data of a volume after all, and change their mind.
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
				t.Errorf("with policy %s the finalizers are %v", policy, volume.Finalizers)
			}
		}
		if len(driver.deleted) != 0 {
			t.Errorf("deleted %v", driver.deleted)
		}
	})
}

// TestSource checks what a copy is made of.
func TestSource(t *testing.T) {
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "s"},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("c")},
	}
	content := func(change ...func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		content := &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Spec:       snapshotv1.VolumeSnapshotContentSpec{Driver: local.Driver, VolumeSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: "s", UID: "s"}},
			Status:     &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("snapshot-s"), ReadyToUse: new(true), RestoreSize: new(int64(gibibyte))},
		}
		for _, c := range change {
			c(content)
		}
		return content
	}
	restores := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "s"}
	}
	copies := func(c *corev1.PersistentVolumeClaim) {
		c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "original"}
	}
	original := claim("original", "", func(c *corev1.PersistentVolumeClaim) {
		c.UID, c.Spec.VolumeName, c.Status.Phase = "o", "v", corev1.ClaimBound
	})
	volume := func(node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{UID: "o"},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: local.Driver, VolumeHandle: "v"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: local.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
	}
	for name, test := range map[string]struct {
		claim     func(*corev1.PersistentVolumeClaim)
		objects   []runtime.Object
		snapshots []runtime.Object
		want      string // of the source, or of the fault
	}{
		"none":            {claim: func(*corev1.PersistentVolumeClaim) {}},
		"snapshot":        {claim: restores, snapshots: []runtime.Object{snapshot, content()}, want: "snapshot-s"},
		"no snapshot":     {claim: restores, want: "there is no VolumeSnapshot s"},
		"another's":       {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "t" })}, want: "another snapshot's"},
		"of other driver": {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = "d" })}, want: "of the driver d"},
		"made elsewhere": {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Labels = map[string]string{utils.VolumeSnapshotContentManagedByLabel: "elsewhere"}
		})}, want: "on node elsewhere"},
		"not ready":        {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Status.ReadyToUse = nil })}, want: "not ready"},
		"too small":        {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Status.RestoreSize = new(int64(2 * gibibyte)) })}, want: "needs 2Gi"},
		"other mode":       {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock) })}, want: "allow-volume-mode-change"},
		"clone":            {claim: copies, objects: []runtime.Object{original, volume("here")}, want: "v"},
		"clone of nothing": {claim: copies, want: "there is no claim original"},
		"clone elsewhere":  {claim: copies, objects: []runtime.Object{original, volume("elsewhere")}, want: "on node elsewhere"},
		"populator": {claim: func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "X", Name: "y"}
		}, want: "volume populator"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &claims{Config: Config{Node: "here"}, api: fake.NewClientset(test.objects...), snapshots: snapshotfake.NewSimpleClientset(test.snapshots...)}
			source, err := c.source(t.Context(), claim("copy", "here", test.claim))
			got := source.GetSnapshot().GetSnapshotId() + source.GetVolume().GetVolumeId()
			if err != nil {
				got = err.Error()
			}
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestNext keeps a node at rest from writing, and never promises what is not there.
func TestNext(t *testing.T) {
	for name, test := range map[string]struct{ published, available, want int64 }{
		"first":              {0, 100 * gibibyte, 100 * gibibyte},
		"in steps":           {0, 100*gibibyte + 100*mebibyte, 100 * gibibyte},
		"a little less":      {99 * gibibyte, 99*gibibyte + 1, 99 * gibibyte},
		"a little more":      {99 * gibibyte, 99*gibibyte + 1000*mebibyte, 99 * gibibyte},
		"much more":          {99 * gibibyte, 100*gibibyte + 600*mebibyte, 100*gibibyte + 512*mebibyte},
		"less than promised": {100 * gibibyte, 100*gibibyte - 1, 99*gibibyte + 512*mebibyte},
		"none":               {96 * gibibyte, 0, 0},
		"still none":         {0, 0, 0},
	} {
		if got := next(test.published, test.available); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

// TestCapacities publishes what the scheduler needs, once.
func TestCapacities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &fakeDriver{capacity: 100 * gibibyte}
		foreign := class("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "x" })
		api := fake.NewClientset(class("local"), foreign)
		ctx, cancel := context.WithCancel(t.Context())
		room := newCapacities(Config{Node: "here", Driver: driver, Informers: objectcache.Own(api)}, api)
		done := make(chan error, 1)
		go func() { done <- room.Run(ctx, func() {}) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		published := func() []storagev1.CSIStorageCapacity {
			t.Helper()
			synctest.Wait()
			list, err := api.StorageV1().CSIStorageCapacities(local.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		}
		time.Sleep(time.Second)
		if got := published(); len(got) != 0 {
			t.Errorf("before the node has registered: %v", got)
		}
		if _, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "1"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		got := published()
		if len(got) != 1 || got[0].StorageClassName != "local" || got[0].Capacity.Value() != 100*gibibyte ||
			got[0].NodeTopology.MatchLabels[local.TopologyKey] != "here" || got[0].OwnerReferences[0].UID != "1" {
			t.Fatalf("published %v", got)
		}
		writes := func() (n int) {
			for _, action := range api.Actions() {
				if verb := action.GetVerb(); verb == "create" || verb == "update" || verb == "patch" || verb == "delete" {
					n++
				}
			}
			return n
		}
		before := writes()
		driver.mu.Lock()
		driver.capacity = 100*gibibyte + 900*mebibyte
		driver.mu.Unlock()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if after := writes(); after != before {
			t.Errorf("%d writes at rest", after-before)
		}
		driver.mu.Lock()
		driver.fault = status.Error(codes.FailedPrecondition, "use local-unlimited")
		driver.mu.Unlock()
		room.refresh()
		if got := published(); got[0].Capacity.Value() != 0 || got[0].Annotations[local.WhyAnnotation] != "use local-unlimited" {
			t.Errorf("published %v", got)
		}
		// A claim waits, and the user mends it.
		if _, err := api.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim("mine", ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		driver.mu.Lock()
		driver.fault = nil
		driver.mu.Unlock()
		time.Sleep(awaitedInterval)
		if got := published(); got[0].Capacity.Value() != 100*gibibyte+512*mebibyte || got[0].Annotations[local.WhyAnnotation] != "" {
			t.Errorf("published %v", got)
		}
		if err := api.StorageV1().StorageClasses().Delete(ctx, "local", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := published(); len(got) != 0 {
			t.Errorf("left %v", got)
		}
	})
}
