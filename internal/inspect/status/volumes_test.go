package status

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	nodecsi "github.com/kedge-dev/kedge/internal/node/csi"
)

// TestStorageReport shows volumes with their claims, and leftovers: a volume that the
// cluster does not know, and a folder that the node does not know.
func TestStorageReport(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := datadir.Dir(t.TempDir())
	driver := nodecsi.New(nodecsi.Config{Node: "here", KubeletDir: t.TempDir(), BaseDir: dir.Storage()})
	notStarted := func(context.Context) (informers.SharedInformerFactory, error) { return nil, errors.New("not started") }
	for _, name := range []string{"pvc-1", "pvc-2"} {
		if _, err := driver.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name:          name,
			CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
			Parameters:    map[string]string{"enforce": "none"},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	stray := filepath.Join(dir.Storage(), "pvc-stray")
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	if report := readVolumes(ctx, driver, notStarted); len(report.Volumes) != 2 || len(report.Leftovers) != 1 || report.Leftovers[0].Path != stray || report.Fault != "" {
		t.Errorf("before the cluster is known: %+v", report)
	}

	client := fake.NewClientset(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "any"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: "data"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: localstorage.Driver, VolumeHandle: "pvc-1"}},
	}})
	objects := objectcache.New(ctx, informers.NewSharedInformerFactory(client, 0), client)
	source := objectcache.Source(func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return objects.View(ctx, objectcache.Options{}), nil
	})
	view, err := source(ctx)
	if err != nil {
		t.Fatal(err)
	}
	view.Core().V1().PersistentVolumes().Informer()
	view.StartWithContext(ctx)
	view.WaitForCacheSync(ctx.Done())
	report := readVolumes(ctx, driver, source)
	if len(report.Volumes) != 2 || report.Volumes[0].Claim != "default/data" || report.Volumes[0].Size != 64<<20 || report.Volumes[1].Claim != "" {
		t.Errorf("volumes are %+v", report.Volumes)
	}
	if len(report.Leftovers) != 2 || report.Leftovers[0].Path != filepath.Join(dir.Storage(), "pvc-2") || report.Leftovers[1].Path != stray {
		t.Errorf("got leftovers %+v, want pvc-2 and the stray folder", report.Leftovers)
	}
}
