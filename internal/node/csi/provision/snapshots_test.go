package provision

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// snapshotDriver has snapshots on its disk.
type snapshotDriver struct {
	csi.UnimplementedControllerServer
	snapshots int
	fault     error
}

func (d snapshotDriver) ListSnapshots(context.Context, *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	return &csi.ListSnapshotsResponse{Entries: make([]*csi.ListSnapshotsResponse_Entry, d.snapshots)}, d.fault
}

// TestAwaitUse makes sure that a node watches its snapshots as soon as there can be some,
// and not before.
func TestAwaitUse(t *testing.T) {
	volume := func(node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver, VolumeHandle: "v"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: localstorage.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		}}
	}
	content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{utils.VolumeSnapshotContentManagedByLabel: "here"}}}
	unknown := apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotcontents"), "")
	for name, test := range map[string]struct {
		driver  snapshotDriver
		known   []runtime.Object
		fault   error
		volumes []runtime.Object
		want    bool
	}{
		"nothing":               {},
		"an unknown kind":       {fault: unknown},
		"a volume elsewhere":    {volumes: []runtime.Object{volume("there")}},
		"a volume":              {volumes: []runtime.Object{volume("here")}, want: true},
		"a snapshot on disk":    {driver: snapshotDriver{snapshots: 1}, want: true},
		"a broken disk":         {driver: snapshotDriver{fault: errors.New("broken")}, want: true},
		"a content":             {known: []runtime.Object{content}, want: true},
		"an API without answer": {fault: errors.New("busy"), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				api, snapshots := fake.NewClientset(test.volumes...), snapshotfake.NewSimpleClientset(test.known...)
				if test.fault != nil {
					snapshots.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.fault })
				}
				ended := make(chan error, 1)
				go func() {
					ended <- awaitUse(ctx, Config{Node: "here", Driver: test.driver, Informers: objectcache.Own(api)}, snapshots)
				}()
				synctest.Wait()
				if got := len(ended) == 1; got != test.want {
					t.Errorf("got %v, want %v", got, test.want)
				}
				if !test.want && len(test.volumes) == 0 {
					// The first volume comes later.
					if _, err := api.CoreV1().PersistentVolumes().Create(ctx, volume("here"), metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if len(ended) != 1 {
						t.Error("the first volume of the node does not begin the watch")
					}
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
