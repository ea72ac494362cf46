// Package storage has pods keep data in claims of kedge's own driver: PostgreSQL through all faults
// of its node, claims of every kind, enforced sizes, two nodes, and a kedge that is killed during
// every operation.
package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	patience  = cluster.Patience
	namespace = cluster.Namespace
	// storagePath is the default folder of kedge's volumes.
	storagePath = "/var/lib/kedge/storage"
	mebibyte    = 1 << 20
)

var busybox = sync.OnceValues(func() (string, error) {
	repository, err := harness.Repository()
	if err != nil {
		return "", err
	}
	return image.Busybox(repository)
})

// newHost makes a host with a disk of its own, of 8 GiB, and the image of the pods.
func newHost(t *testing.T, network *harness.Network, name string) (*harness.Host, *harness.Disk) {
	t.Helper()
	archive, err := busybox()
	if err != nil {
		t.Fatalf("build image: %v", err)
	}
	host, disk := network.NewHostOnDisk(t, name)
	host.Preload(archive)
	return host, disk
}

// storage is a cluster whose server has a disk of its own.
type storage struct {
	*cluster.Cluster
	disk *harness.Disk
}

// start starts a server and waits for its node. If the test fails, it shows claims and volumes.
func start(t *testing.T, network *harness.Network, archives ...string) *storage {
	t.Helper()
	harness.Need(t, "e2fsprogs")
	host, disk := newHost(t, network, "server-1")
	host.Preload(archives...)
	server := host.StartServer(t)
	server.WaitReady()
	s := &storage{cluster.Of(t, server), disk}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		objects, err := s.TryKubectl("", "get", "pv,pvc,sc,volumesnapshots,volumesnapshotcontents,csistoragecapacities,csinodes", "-A", "-o", "wide")
		t.Logf("objects: %v\n%s\nstatus:\n%s", err, objects, statusOf(context.Background(), host))
	})
	return s
}

// claim describes a PersistentVolumeClaim. It has the default class and ReadWriteOnce unless it
// says something else.
type claim struct {
	name, size, class, mode string
	// source is the claim or the snapshot to copy, such as
	// {kind: PersistentVolumeClaim, name: data}.
	source string
	block  bool
}

// spec returns the claim's spec in YAML, on one line.
func (c claim) spec() string {
	mode := "ReadWriteOnce"
	if c.mode != "" {
		mode = c.mode
	}
	spec := fmt.Sprintf("accessModes: [%s], resources: {requests: {storage: %s}}", mode, c.size)
	if c.class != "" {
		spec += ", storageClassName: " + c.class
	}
	if c.source != "" {
		spec += ", dataSource: " + c.source
	}
	if c.block {
		spec += ", volumeMode: Block"
	}
	return "{" + spec + "}"
}

func (c claim) yaml() string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: %s}\nspec: %s\n", c.name, c.spec())
}

// pod is a pod that sleeps, with claims mounted at /CLAIM each.
type pod struct {
	name   string
	claims []string
	// ephemeral is the size of a generic ephemeral volume at /scratch, or empty.
	ephemeral string
	// node is where it must be, or empty.
	node string
	// before is what its shell does first, or empty.
	before string
	// spec has more fields, such as securityContext: {fsGroup: 1}, or is empty.
	spec string
}

func (p pod) yaml() string {
	var volumes, mounts []string
	if p.ephemeral != "" {
		volumes = append(volumes, fmt.Sprintf("{name: scratch, ephemeral: {volumeClaimTemplate: {spec: %s}}}", claim{size: p.ephemeral}.spec()))
		mounts = append(mounts, "{name: scratch, mountPath: /scratch}")
	}
	for _, claim := range p.claims {
		volumes = append(volumes, fmt.Sprintf("{name: %[1]s, persistentVolumeClaim: {claimName: %[1]s}}", claim))
		mounts = append(mounts, fmt.Sprintf("{name: %[1]s, mountPath: /%[1]s}", claim))
	}
	text := fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [%s]
  containers:
  - name: main
    image: %s
    command: [sh, -c, %q]
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
    volumeMounts: [%s]
`, p.name, strings.Join(volumes, ", "), image.BusyboxName, "set -e; "+p.before+"\ntouch /tmp/ready; exec sleep 1000000", strings.Join(mounts, ", "))
	if p.node != "" {
		// It uses no nodeName, because the scheduler must choose the node of a volume.
		text += fmt.Sprintf("  nodeSelector: {kubernetes.io/hostname: %s}\n", p.node)
	}
	if p.spec != "" {
		text += "  " + p.spec + "\n"
	}
	return text
}

// exec runs a program in a pod and returns its output.
func (s *storage) exec(pod string, command ...string) string {
	s.Helper()
	return s.Kubectl(append([]string{"exec", pod, "--"}, command...)...)
}

// has checks the content of a file in a pod.
func (s *storage) has(pod, file, content string) {
	s.Helper()
	if found := s.exec(pod, "cat", file); found != content {
		s.Errorf("%s of pod %s is %q, and was written as %q", file, pod, found, content)
	}
}

// removed deletes objects and waits until none of them exists.
func (s *storage) removed(objects ...string) {
	s.Helper()
	s.Kubectl(append([]string{"delete", "--timeout=" + patience.String(), "--ignore-not-found"}, objects...)...)
}

// volumeOf waits until a claim is bound, and returns its volume.
func (s *storage) volumeOf(claim string) *corev1.PersistentVolume {
	s.Helper()
	var found *corev1.PersistentVolume
	s.Eventually("claim "+claim+" to be bound", func() error {
		c, err := s.Client.CoreV1().PersistentVolumeClaims(namespace).Get(s.Context(), claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", c.Status.Phase)
		}
		found, err = s.Client.CoreV1().PersistentVolumes().Get(s.Context(), c.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return found
}

// gone waits until a volume does not exist any more.
func (s *storage) gone(volume string) {
	s.Helper()
	s.Eventually("volume "+volume+" to go", func() error {
		v, err := s.Client.CoreV1().PersistentVolumes().Get(s.Context(), volume, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("it is %s, with the finalizers %v", v.Status.Phase, v.Finalizers)
		}
		return err
	})
}

// pendingWith waits until a claim has an Event with all the words, and checks that the claim is
// Pending.
func (s *storage) pendingWith(claim string, words ...string) {
	s.Helper()
	s.saidOf("PersistentVolumeClaim", claim, words...)
	c, err := s.Client.CoreV1().PersistentVolumeClaims(namespace).Get(s.Context(), claim, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	if c.Status.Phase != corev1.ClaimPending {
		s.Errorf("claim %s is %s", claim, c.Status.Phase)
	}
}

// saidOf waits until an object has an Event with all the words.
func (s *storage) saidOf(kind, name string, words ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("an event of %s %s with %q", kind, name, words), func() error {
		events, err := s.Client.CoreV1().Events(namespace).List(s.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name,
		})
		if err != nil {
			return err
		}
		var said []string
		for _, event := range events.Items {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(event.Message, word) }) {
				s.Logf("%s %s: %s: %s", kind, name, event.Reason, event.Message)
				return nil
			}
			said = append(said, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("there are %q", said)
	})
}

// clean waits until nothing is left of any volume: no object, file, mount or loop device, and
// nothing in the status.
func (s *storage) clean() {
	s.Helper()
	s.Eventually("nothing to be left of any volume", func() error {
		volumes, err := s.Client.CoreV1().PersistentVolumes().List(s.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			return fmt.Errorf("volume %s is there: %s", volume.Name, volume.Status.Phase)
		}
		snapshots, err := s.TryKubectl("", "get", "volumesnapshots,volumesnapshotcontents", "-A", "-o", "name")
		if err == nil && snapshots != "" {
			err = fmt.Errorf("%s are there", strings.Fields(snapshots))
		}
		if err != nil {
			return err
		}
		if status := s.status(); strings.Contains(status, "pvc-") {
			return fmt.Errorf("the status is\n%s", status)
		}
		return leftOn(s.Server.Host, s.disk)
	})
}

// status returns the output of `kedge status` on the server's host. The command fails while
// something is wrong.
func (s *storage) status() string { return statusOf(s.Context(), s.Server.Host) }

func statusOf(ctx context.Context, host *harness.Host) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	output, _ := host.Kedge(ctx, "status", "--components").CombinedOutput()
	return string(output)
}

// leftOn returns an error if something is left of volumes on a host.
func leftOn(host *harness.Host, disk *harness.Disk) error {
	root := host.Path("/")
	err := filepath.WalkDir(host.Path(storagePath), func(path string, entry os.DirEntry, err error) error {
		if err == nil && (strings.Contains(path, "pvc-") || strings.Contains(path, "snapshot-")) {
			err = fmt.Errorf("%s is there", strings.TrimPrefix(path, root))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return mountedOn(host, disk)
}

// mountedOn returns an error if something of volumes is mounted or attached on a host.
func mountedOn(host *harness.Host, disk *harness.Disk) error {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", host.FirstProcess()))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, storagePath) || strings.Contains(line, "kubernetes.io~csi") || strings.Contains(line, "kubernetes.io/csi") {
			return fmt.Errorf("a mount is there: %s", line)
		}
	}
	loops, err := disk.Loops()
	if err == nil && len(loops) > 0 {
		err = fmt.Errorf("files of the disk are on %v", loops)
	}
	return err
}

// restarted waits until the node is ready after a start of kedge.
func (s *storage) restarted() {
	s.Helper()
	s.Server.WaitReady()
	s.Client = s.Server.Client()
}

// settled is how long a test waits for something that must not happen.
const settled = 5 * time.Second
