package storage

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// TestMain makes informers use list requests: the fake client of snapshots cannot
// answer WatchList, and does not report that.
func TestMain(m *testing.M) {
	_ = os.Setenv("KUBE_FEATURE_WatchListClient", "false")
	os.Exit(m.Run())
}

// env runs the loop that checks claims.
type env struct {
	t      *testing.T
	api    *fake.Clientset
	custom *snapshotfake.Clientset
	events map[string]string // the last message of each reason
}

// start must be called in a bubble of synctest.
func start(t *testing.T, snapshots []runtime.Object, objects ...runtime.Object) *env {
	t.Helper()
	e := &env{t, fake.NewClientset(objects...), snapshotfake.NewSimpleClientset(snapshots...), map[string]string{}}
	// Names of Events contain the time, which stands still here.
	e.api.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		e.events[event.Reason] = event.Message
		return true, event, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(e.api, 0)
	custom := snapshotinformers.NewSharedInformerFactory(e.custom, 0)
	c := newClaims(ctx, e.api, e.custom, factory, custom, logrus.WithField("test", t.Name()))
	factory.StartWithContext(ctx)
	custom.Start(ctx.Done())
	done := make(chan struct{})
	go func() {
		c.run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		factory.Shutdown()
		custom.Shutdown()
	})
	e.settle()
	return e
}

func (e *env) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func (e *env) claim(name string) *corev1.PersistentVolumeClaim {
	e.t.Helper()
	claim, err := e.api.CoreV1().PersistentVolumeClaims("default").Get(e.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return claim
}

func size(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

func class(mode storagev1.VolumeBindingMode, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: localstorage.Driver, VolumeBindingMode: &mode}
	for _, c := range change {
		c(class)
	}
	return class
}

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
	}}}}
}

func capacity(node, size, why string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Namespace: localstorage.Namespace, Name: node, Annotations: map[string]string{localstorage.WhyAnnotation: why}},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{localstorage.TopologyKey: node}},
		StorageClassName: "local",
		Capacity:         new(resource.MustParse(size)),
	}
}

func claim(name, asks string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "of-claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("local"), Resources: corev1.VolumeResourceRequirements{Requests: size(asks)}},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, c := range change {
		c(claim)
	}
	return claim
}

// bound returns a claim that is bound to the volume v and has the given capacity.
func bound(has string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status.Phase, c.Status.Capacity = "v", corev1.ClaimBound, size(has)
	}
}

// volume returns a volume on node a.
func volume(has string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v", Finalizers: []string{localstorage.VolumeFinalizer}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "of-claim"},
			Capacity:                      size(has),
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver, VolumeHandle: "v"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

// TestGrow wants the kubelet to grow a volume once if its claim asks for more.
func TestGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, nil, class(storagev1.VolumeBindingWaitForFirstConsumer), node("a", corev1.ConditionTrue), claim("data", "1Gi", bound("1Gi")), volume("1Gi"))
		grown := e.claim("data")
		grown.Spec.Resources.Requests = size("2Gi")
		if _, err := e.api.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), grown, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		v, err := e.api.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Spec.Capacity[corev1.ResourceStorage]; got.String() != "2Gi" {
			t.Errorf("the volume has %s", &got)
		}
		status := e.claim("data").Status
		if got := status.AllocatedResources[corev1.ResourceStorage]; got.String() != "2Gi" ||
			status.AllocatedResourceStatuses[corev1.ResourceStorage] != corev1.PersistentVolumeClaimNodeResizePending ||
			len(status.Conditions) != 1 || status.Conditions[0].Type != corev1.PersistentVolumeClaimFileSystemResizePending {
			t.Errorf("the claim's status is %+v", status)
		}
		writes := len(e.api.Actions())
		time.Sleep(time.Hour)
		e.settle()
		if more := e.api.Actions()[writes:]; len(more) != 0 {
			t.Errorf("got writes %v while the kubelet grows the volume, want none", more)
		}
	})
}

// TestTooLarge wants an Event with the possible size and its node, and another
// one when these change.
func TestTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, nil, class(storagev1.VolumeBindingWaitForFirstConsumer),
			claim("data", "1Ti"), claim("fits", "1Gi"), capacity("a", "20Gi", ""), capacity("b", "100Gi", ""), capacity("c", "0", "this host has no mkfs.ext4"))
		got := e.events[noNode]
		for _, want := range []string{"asks for 1Ti", "The largest possible size is 100Gi, on node b", "node c: this host has no mkfs.ext4"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not in %q", want, got)
			}
		}
		delete(e.events, noNode)
		b := capacity("b", "90Gi", "")
		if _, err := e.api.StorageV1().CSIStorageCapacities(localstorage.Namespace).Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if got := e.events[noNode]; !strings.Contains(got, "90Gi, on node b") {
			t.Errorf("after a change: got event %q, want 90Gi on node b", got)
		}
		if e.claim("data").Annotations[localstorage.NodeAnnotation] != "" {
			t.Error("a node was chosen, in the scheduler's place")
		}
	})
}

// TestPlace chooses the node of claims whose node nobody else can choose.
func TestPlace(t *testing.T) {
	onlyC := func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: localstorage.TopologyKey, Values: []string{"c"}}}}}
	}
	// asked is what upstream's binder of volumes writes to a claim.
	asked := func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{localstorage.ProvisionerAnnotation: localstorage.Driver}
	}
	copyOf := func(group *string, kind string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.UID, c.Spec.DataSourceRef = "of-copy", &corev1.TypedObjectReference{APIGroup: group, Kind: kind, Name: "data"}
		}
	}
	snapshots := []runtime.Object{
		&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Status: &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("c")}},
		&snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{utils.VolumeSnapshotContentManagedByLabel: "c"}},
			Spec:       snapshotv1.VolumeSnapshotContentSpec{Driver: localstorage.Driver},
		},
	}
	const immediate, waits = storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	for name, test := range map[string]struct {
		class *storagev1.StorageClass
		claim *corev1.PersistentVolumeClaim
		want  string
	}{
		"most room":       {class(immediate), claim("new", "1Gi", asked), "b"},
		"by the class":    {class(immediate, onlyC), claim("new", "1Gi", asked), "c"},
		"not asked yet":   {class(immediate), claim("new", "1Gi"), ""},
		"waits for a pod": {class(waits), claim("new", "1Gi"), ""},
		"of a claim":      {class(waits), claim("new", "1Gi", copyOf(nil, "PersistentVolumeClaim")), "a"},
		"of a snapshot":   {class(waits), claim("new", "1Gi", copyOf(new(snapshotv1.GroupName), "VolumeSnapshot")), "c"},
		"of others":       {class(waits), claim("new", "1Gi", copyOf(new("example.com"), "PersistentVolumeClaim")), ""},
		"also of others":  {class(waits), claim("new", "1Gi", copyOf(new("example.com"), "VolumeSnapshot")), ""},
		"another's class": {class(immediate, func(c *storagev1.StorageClass) { c.Provisioner = "x" }), claim("new", "1Gi", asked), ""},
		"chosen, but gone": {class(waits), claim("new", "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{localstorage.NodeAnnotation: "gone"}
		}), ""},
		"chosen by others": {class(immediate), claim("new", "1Gi", func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{localstorage.NodeAnnotation: "a"}
		}), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, snapshots, test.class, test.claim, claim("data", "1Gi", bound("1Gi")), volume("1Gi"),
					node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue), node("c", corev1.ConditionTrue),
					capacity("a", "20Gi", ""), capacity("b", "100Gi", ""), capacity("c", "50Gi", ""), capacity("gone", "1Ti", ""))
				if got := e.claim("new").Annotations[localstorage.NodeAnnotation]; got != test.want {
					t.Errorf("the node is %q, want %q", got, test.want)
				}
			})
		})
	}
}

// TestNodeAway wants Events about volumes whose node does not answer, and wants
// the volumes to be released once the user has deleted the node and the claim.
func TestNodeAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, nil, class(storagev1.VolumeBindingWaitForFirstConsumer), node("a", corev1.ConditionTrue), claim("data", "1Gi", bound("1Gi")), volume("1Gi"))
		if len(e.events) > 0 {
			t.Errorf("events of a node that is well: %v", e.events)
		}
		if _, err := e.api.CoreV1().Nodes().Update(t.Context(), node("a", corev1.ConditionUnknown), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if got := e.events[nodeSilent]; !strings.Contains(got, "since 2030-01-02T03:04:05Z") || !strings.Contains(got, "kubectl delete node a") {
			t.Errorf("node that does not answer: got event %q, want since when, and what to do", got)
		}
		if err := e.api.CoreV1().Nodes().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if got := e.events[nodeGone]; !strings.Contains(got, "kubectl delete pvc data --namespace default") {
			t.Errorf("node that is gone: got event %q, want what to do", got)
		}
		if _, err := e.api.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{}); err != nil {
			t.Errorf("the volume of a claim that is there: %v", err)
		}
		// A StatefulSet creates its claim again at once in this way.
		if err := e.api.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.api.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claim("data", "1Gi"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		released := volume("1Gi")
		released.Status.Phase = corev1.VolumeReleased
		if _, err := e.api.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), released, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.settle()
		if _, err := e.api.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the volume is still there: %v", err)
		}
	})
}

// TestSnapshotOfUser wants the node of a user's snapshot to be found if only one
// node is possible.
func TestSnapshotOfUser(t *testing.T) {
	with := func(name string) *corev1.Node {
		node := node(name, corev1.ConditionTrue)
		node.Labels = map[string]string{localstorage.TopologyKey: name}
		return node
	}
	for want, nodes := range map[string][]runtime.Object{"a": {with("a"), node("b", corev1.ConditionTrue)}, "": {with("a"), with("b")}} {
		synctest.Test(t, func(t *testing.T) {
			content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: localstorage.Driver}}
			e := start(t, []runtime.Object{content}, nodes...)
			got, err := e.custom.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), "c", metav1.GetOptions{})
			if err != nil || managedBy(got) != want {
				t.Errorf("of %d nodes it is %q, want %q: %v", len(nodes), managedBy(got), want, err)
			}
		})
	}
}

// TestSnapshotOfGoneNode completes the deletion of a snapshot whose node is gone.
func TestSnapshotOfGoneNode(t *testing.T) {
	content := func(name, node string, deleted bool) *snapshotv1.VolumeSnapshotContent {
		content := &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{utils.VolumeSnapshotContentManagedByLabel: node},
				Finalizers: []string{"another", utils.VolumeSnapshotContentFinalizer},
			},
			Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: localstorage.Driver},
		}
		if deleted {
			content.DeletionTimestamp = new(metav1.Now())
		}
		return content
	}
	synctest.Test(t, func(t *testing.T) {
		e := start(t, []runtime.Object{content("there", "a", true), content("kept", "gone", false), content("stuck", "gone", true)}, node("a", corev1.ConditionTrue))
		for name, want := range map[string]int{"there": 2, "kept": 2, "stuck": 1} {
			got, err := e.custom.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || len(got.Finalizers) != want {
				t.Errorf("%s has the finalizers %v, %v", name, got.Finalizers, err)
			}
		}
	})
}
