package storage

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/tests/harness"
)

// TestSizes checks that a pod sees and can fill the size of its claim and no more, that the volume
// grows while the pod runs, and that its space is freed.
func TestSizes(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := start(t, harness.NewNetwork(t))
	s.Apply(claim{name: "other", size: "256Mi"}.yaml() + pod{name: "other", claims: []string{"other"}, before: "dd if=/dev/zero of=/other/file bs=1M count=100"}.yaml())
	s.Pod("other")
	before := s.used()
	s.Apply(claim{name: "data", size: "256Mi"}.yaml() + pod{name: "data", claims: []string{"data"}}.yaml())
	s.Pod("data")

	t.Log("the size is the claim's")
	s.sized("data", 256)
	s.Eventually("the kubelet to know the size", func() error {
		metrics, err := s.TryKubectl("", "get", "--raw", "/api/v1/nodes/server-1/proxy/metrics")
		if err != nil {
			return err
		}
		for line := range strings.Lines(metrics) {
			var bytes float64
			if strings.HasPrefix(line, "kubelet_volume_stats_capacity_bytes{") && strings.Contains(line, `persistentvolumeclaim="data"`) {
				if _, err := fmt.Sscan(line[strings.Index(line, "} ")+2:], &bytes); err == nil && within(bytes, 256) {
					return nil
				}
				return fmt.Errorf("it says %s", line)
			}
		}
		return fmt.Errorf("the status does not name the claim")
	})

	t.Log("a pod that writes more gets ENOSPC, and no other pod does")
	s.fill("data", 256)
	s.exec("other", "dd", "if=/dev/zero", "of=/other/file", "bs=1M", "count=100", "conv=fsync")
	s.Kubectl("create", "configmap", "written-meanwhile")
	if used := s.used(); used > before+(256+slack)*mebibyte {
		t.Errorf("the disk has %.0f MiB in use, and had %.0f", used/mebibyte, before/mebibyte)
	}

	t.Log("it grows")
	facts, err := host.Detect()
	if err != nil {
		t.Fatal(err)
	}
	s.ask("data", "512Mi")
	if !facts.SysResource {
		// This kernel does not let a mounted ext4 grow.
		s.Eventually("the claim to say what to do", func() error {
			_, conditions := s.sizeOf("data")
			if !strings.Contains(conditions, "delete the pod") {
				return fmt.Errorf("it says %s", conditions)
			}
			return nil
		})
		s.removed("pod/data")
		s.Apply(pod{name: "data", claims: []string{"data"}}.yaml())
	}
	s.grown("data", 512)
	s.fill("data", 512)
	s.exec("data", "rm", "/data/filled")
	s.exec("data", "dd", "if=/dev/zero", "of=/data/file", "bs=1M", "count=100", "conv=fsync")

	t.Log("a deletion frees the space")
	volume := s.volumeOf("data")
	s.removed("pod/data", "pvc/data")
	s.gone(volume.Name)
	s.Eventually("the space to be free", func() error {
		if used := s.used(); used > before+slack*mebibyte {
			return fmt.Errorf("%.0f MiB are in use, and %.0f were before it was made", used/mebibyte, before/mebibyte)
		}
		return nil
	})
	s.removed("pod/other", "pvc/other")
	s.clean()
}

// TestGrowing expands a claim while a pod writes to it. Its file system is one that every kernel
// can grow.
func TestGrowing(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "xfsprogs")
	s := start(t, harness.NewNetwork(t))
	s.Apply(class("xfs", "{csi.storage.k8s.io/fstype: xfs}", "allowVolumeExpansion: true") +
		claim{name: "data", size: "512Mi", class: "xfs"}.yaml() + pod{name: "data", claims: []string{"data"}}.yaml())
	container := s.Pod("data").Status.ContainerStatuses[0].ContainerID
	s.fill("data", 512)
	s.ask("data", "1Gi")
	s.grown("data", 1024)
	if now := s.Pod("data").Status.ContainerStatuses[0].ContainerID; now != container {
		t.Errorf("the container is %s, and was %s", now, container)
	}
	s.fill("data", 1024)
	s.removed("pod/data", "pvc/data")
	s.clean()
}

// TestFullDisk fills the disk with other data. An existing volume must have its space, and a new
// one must wait until there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := start(t, harness.NewNetwork(t))
	s.Apply(claim{name: "data", size: "1Gi"}.yaml() + pod{name: "data", claims: []string{"data"}}.yaml())
	s.Pod("data")
	filler, err := os.Create(s.Server.Host.Path("/var/lib/kedge/filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(filler.Fd()), &disk); err != nil {
		t.Fatal(err)
	}
	// kedge leaves 10 % of the disk free, and the kubelet evicts pods at 5 %.
	room := (int64(disk.Bavail) - int64(disk.Blocks)*12/100) * disk.Bsize
	if err := unix.Fallocate(int(filler.Fd()), 0, 0, room); err != nil {
		t.Fatalf("fill the disk: %v", err)
	}
	s.Apply(claim{name: "late", size: "512Mi"}.yaml() + pod{name: "late", claims: []string{"late"}, node: "server-1"}.yaml())
	s.pendingWith("late", "largest")
	s.fill("data", 1024)
	if err := filler.Truncate(0); err != nil {
		t.Fatal(err)
	}
	s.Pod("late")
	s.removed("pod/data", "pvc/data", "pod/late", "pvc/late")
	s.clean()
}

// TestUnlimited uses a plain directory. Its links must not be followed when it is deleted.
func TestUnlimited(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := start(t, harness.NewNetwork(t))
	s.Server.Host.WriteFile("/var/lib/kedge/keep/file", "kept")
	s.Apply(claim{name: "kept", size: "64Mi", class: "local-unlimited"}.yaml() + claim{name: "plain", size: "64Mi", class: "local-unlimited"}.yaml())
	s.Apply(pod{name: "kept", claims: []string{"kept"}, before: "echo kept >/kept/file"}.yaml())
	s.Pod("kept")
	kept := s.volumeOf("kept")
	s.Apply(pod{name: "plain", claims: []string{"plain"}, before: `
cd /plain
dd if=/dev/zero of=more-than-asked bs=1M count=100
for target in / .. ../.. ../` + kept.Name + ` ` + storagePath + ` /var/lib/kedge/keep; do ln -s $target link-$((i += 1)); done
mkdir -p many/levels/of/folders && ln -s /var/lib/kedge/keep many/levels/of/folders/link
mkfifo pipe && ln many/levels/../../more-than-asked hard`}.yaml())
	s.Pod("plain")
	volume := s.volumeOf("plain")
	s.removed("pod/plain", "pvc/plain")
	s.gone(volume.Name)
	s.has("kept", "/kept/file", "kept")
	if text, err := os.ReadFile(s.Server.Host.Path("/var/lib/kedge/keep/file")); err != nil || string(text) != "kept" {
		t.Errorf("a file of the host is %q: %v", text, err)
	}
	s.removed("pod/kept", "pvc/kept")
	s.clean()
}

// slack is what other programs write to the disk in the meantime, in MiB: logs and the datastore.
const slack = 64

// used returns the bytes in use on the disk, including those not written back yet.
func (s *storage) used() float64 {
	s.Helper()
	if _, err := s.disk.Written(); err != nil { // which syncs it
		s.Fatal(err)
	}
	used, err := s.disk.Used()
	if err != nil {
		s.Fatal(err)
	}
	return used
}

// within tells whether bytes is the size of a claim in MiB, less what a file system may need for
// itself.
func within(bytes float64, size int) bool {
	return bytes <= float64(size)*mebibyte && bytes >= 0.9*float64(size)*mebibyte
}

// ask changes the size that a claim asks for.
func (s *storage) ask(claim, size string) {
	s.Helper()
	s.Kubectl("patch", "pvc", claim, "--patch", fmt.Sprintf(`{"spec": {"resources": {"requests": {"storage": %q}}}}`, size))
}

// sizeOf returns the size of a claim in MiB, and its conditions.
func (s *storage) sizeOf(claim string) (size int, conditions string) {
	s.Helper()
	c, err := s.Client.CoreV1().PersistentVolumeClaims(namespace).Get(s.Context(), claim, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for _, condition := range c.Status.Conditions {
		// This one says only whether a pod uses the claim.
		if condition.Type != corev1.PersistentVolumeClaimUnused {
			conditions += fmt.Sprintf("%s: %s; ", condition.Type, condition.Message)
		}
	}
	return int(c.Status.Capacity.Storage().Value() / mebibyte), conditions
}

// grown waits until a claim has a size, which df must show in the pod of the same name.
func (s *storage) grown(claim string, size int) {
	s.Helper()
	s.Eventually(fmt.Sprintf("claim %s to have %d MiB", claim, size), func() error {
		if now, conditions := s.sizeOf(claim); now != size || conditions != "" {
			return fmt.Errorf("it has %d MiB: %s", now, conditions)
		}
		return nil
	})
	s.Pod(claim)
	s.sized(claim, size)
}

// sized checks that df shows the size of a claim in the pod of the same name.
func (s *storage) sized(name string, size int) {
	s.Helper()
	s.In(name, fmt.Sprintf("df to show %d MiB", size), func(output string) bool {
		lines := strings.Split(output, "\n")
		var device string
		var kibibytes float64
		_, err := fmt.Sscan(lines[len(lines)-1], &device, &kibibytes)
		return err == nil && within(kibibytes*1024, size)
	}, "df", "-kP", "/"+name)
}

// fill writes to a claim, in the pod of the same name, until there is no space.
func (s *storage) fill(name string, size int) {
	s.Helper()
	output := s.exec(name, "sh", "-c", fmt.Sprintf("dd if=/dev/zero of=/%[1]s/filled bs=1M 2>&1; sync; du -k /%[1]s/filled", name))
	lines := strings.Split(output, "\n")
	var kibibytes float64
	if _, err := fmt.Sscan(lines[len(lines)-1], &kibibytes); err != nil || !strings.Contains(output, "No space left on device") || kibibytes < 0.8*1024*float64(size) {
		s.Errorf("of %d MiB there was room for %.0f: %s", size, kibibytes/1024, output)
	}
}
