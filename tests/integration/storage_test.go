package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestStorage takes a claim without a class through its whole life: it is bound and mounted, its
// size is enforced, it is expanded, snapshotted, restored and cloned, and when it is deleted
// nothing is left of it.
func TestStorage(t *testing.T) {
	t.Parallel()
	harness.Need(t, "e2fsprogs")
	s := newSpace(t)
	s.claim("data", "64Mi", "")
	s.user("data")
	if volume := s.volumeOf("data"); !strings.HasPrefix(volume, "pvc-") {
		t.Errorf("the volume is %s", volume)
	}
	if output, err := s.in("data", "sh", "-c", "echo kept >/volume/file; dd if=/dev/zero of=/volume/filler bs=1M 2>&1; sync"); err != nil || !strings.Contains(output, "No space left") {
		t.Errorf("writing more than there is: %v: %s", err, output)
	}
	if size := s.size("data"); size < 55<<10 || size > 64<<10 {
		t.Errorf("the volume has %d KiB", size)
	}
	if _, err := s.in("data", "rm", "/volume/filler"); err != nil {
		t.Fatal(err)
	}

	s.kubectl("patch", "pvc", "data", "--patch", `{"spec": {"resources": {"requests": {"storage": "128Mi"}}}}`)
	// Not every host lets a mounted file system grow.
	s.eventually("the claim to have grown, or to say what to do", func() error {
		if err := s.grown("data"); err != nil && !strings.Contains(err.Error(), "delete the pod") {
			return err
		}
		return nil
	})
	s.kubectl("delete", "pod", "data")
	s.user("data")
	s.eventually("the claim to have grown", func() error { return s.grown("data") })
	if size := s.size("data"); size < 110<<10 {
		t.Errorf("after growing the volume has %d KiB", size)
	}

	s.apply(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: snapshot}
spec: {source: {persistentVolumeClaimName: data}}
`)
	s.kubectl("wait", "volumesnapshot/snapshot", "--for=jsonpath={.status.readyToUse}=true", "--timeout="+patience.String())
	if _, err := s.in("data", "sh", "-c", "echo later >/volume/file; sync"); err != nil {
		t.Fatal(err)
	}
	s.claim("restored", "128Mi", "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: snapshot}")
	s.claim("cloned", "128Mi", "dataSource: {kind: PersistentVolumeClaim, name: data}")
	for name, want := range map[string]string{"restored": "kept", "cloned": "later"} {
		s.user(name)
		if got, err := s.in(name, "cat", "/volume/file"); err != nil || got != want {
			t.Errorf("the file of %s is %q, want %q: %v", name, got, want, err)
		}
	}

	folder := s.server.Host.Path("/var/lib/kedge/storage")
	volumes := []string{s.volumeOf("data"), s.volumeOf("restored"), s.volumeOf("cloned")}
	status, err := s.server.Host.Kedge(s.ctx, "status", "--components").Output()
	if err != nil || !strings.Contains(string(status), volumes[0]) || !strings.Contains(string(status), s.namespace+"/data") {
		t.Errorf("the status does not name %s and its claim: %v\n%s", volumes[0], err, status)
	}
	s.kubectl("delete", "pod/data", "pod/restored", "pod/cloned")
	s.kubectl("delete", "volumesnapshot/snapshot")
	s.kubectl("delete", "pvc/data", "pvc/restored", "pvc/cloned")
	for _, volume := range volumes {
		s.eventually("the volume "+volume+" to be gone", func() error {
			if _, err := s.client.CoreV1().PersistentVolumes().Get(s.ctx, volume, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("its object is there: %w", err)
			}
			if _, err := os.Stat(filepath.Join(folder, volume)); !os.IsNotExist(err) {
				return fmt.Errorf("its folder is there: %w", err)
			}
			return nil
		})
	}
}

// TestStorageRefuses checks that claims which must wait say what can be done.
func TestStorageRefuses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: NAMESPACE}
provisioner: local.kedge.dev
parameters: {shard: "true"}
volumeBindingMode: Immediate
`)
	t.Cleanup(func() { s.kubectl("delete", "storageclass", s.namespace) })
	s.claim("large", "100Ti", "")
	s.claim("typo", "64Mi", "storageClassName: "+s.namespace)
	for claim, want := range map[string]string{"large": "The largest possible size is", "typo": "shard"} {
		s.eventually("an event of claim "+claim, func() error {
			events, err := s.client.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + claim})
			if err != nil {
				return err
			}
			var texts []string
			for _, event := range events.Items {
				if strings.Contains(event.Message, want) {
					return nil
				}
				texts = append(texts, event.Message)
			}
			return fmt.Errorf("none says %q: %q", want, texts)
		})
	}
}

// claim makes a claim. more has further fields of its spec.
func (s *space) claim(name, size, more string) {
	s.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}
  %s
`, name, size, more))
}

// grown returns nil if a claim has 128 MiB.
func (s *space) grown(claim string) error {
	found, err := s.client.CoreV1().PersistentVolumeClaims(s.namespace).Get(s.ctx, claim, metav1.GetOptions{})
	if err != nil {
		return err
	}
	// Kubernetes also says in a condition whether a pod uses the claim.
	pending := slices.DeleteFunc(found.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimUnused
	})
	if got := found.Status.Capacity.Storage(); got.Value() != 128<<20 || len(pending) > 0 {
		return fmt.Errorf("it has %s, and %v", got, pending)
	}
	return nil
}

// user runs a pod with the claim's name that has the claim mounted at /volume.
func (s *space) user(claim string) {
	s.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: volume, persistentVolumeClaim: {claimName: %[1]s}}]
  containers:
  - name: main
    image: %[2]s
    command: [sleep, "1000000"]
    volumeMounts: [{name: volume, mountPath: /volume}]
`, claim, busybox))
	s.pod(claim)
}

// volumeOf returns the volume that a claim is bound to.
func (s *space) volumeOf(claim string) string {
	s.Helper()
	return s.kubectl("get", "pvc", claim, "--output=jsonpath={.spec.volumeName}")
}

// size returns the size of a pod's volume in KiB.
func (s *space) size(pod string) (kibibytes int) {
	s.Helper()
	output, err := s.in(pod, "df", "-kP", "/volume")
	lines := strings.Split(output, "\n")
	var device string
	if err == nil {
		_, err = fmt.Sscan(lines[len(lines)-1], &device, &kibibytes)
	}
	if err != nil {
		s.Fatalf("df: %v: %s", err, output)
	}
	return kibibytes
}
