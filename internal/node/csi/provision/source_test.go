package provision

import (
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// TestSource checks what a copy is made from.
func TestSource(t *testing.T) {
	snapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "s"},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("c")},
	}
	content := func(change ...func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		content := &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "c"},
			Spec:       snapshotv1.VolumeSnapshotContentSpec{Driver: localstorage.Driver, VolumeSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: "s", UID: "s"}},
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
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver, VolumeHandle: "v"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
	}
	for name, test := range map[string]struct {
		claim     func(*corev1.PersistentVolumeClaim)
		objects   []runtime.Object
		snapshots []runtime.Object
		want      string // part of the source, or of the error
	}{
		"none":            {claim: func(*corev1.PersistentVolumeClaim) {}},
		"snapshot":        {claim: restores, snapshots: []runtime.Object{snapshot, content()}, want: "snapshot-s"},
		"no snapshot":     {claim: restores, want: "VolumeSnapshot s, the claim's source, does not exist"},
		"another's":       {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "t" })}, want: "another snapshot"},
		"of other driver": {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.Driver = "d" })}, want: "by the driver d"},
		"made elsewhere": {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) {
			c.Labels = map[string]string{utils.VolumeSnapshotContentManagedByLabel: "elsewhere"}
		})}, want: "its source is on another node"},
		"not ready":        {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Status.ReadyToUse = nil })}, want: "not ready"},
		"too small":        {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Status.RestoreSize = new(int64(2 * gibibyte)) })}, want: "needs 2Gi"},
		"other mode":       {claim: restores, snapshots: []runtime.Object{snapshot, content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.SourceVolumeMode = new(corev1.PersistentVolumeBlock) })}, want: "allow-volume-mode-change"},
		"clone":            {claim: copies, objects: []runtime.Object{original, volume("here")}, want: "v"},
		"clone of nothing": {claim: copies, want: "claim original, the claim's source, does not exist"},
		"clone elsewhere":  {claim: copies, objects: []runtime.Object{original, volume("elsewhere")}, want: "its source is on another node"},
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
