package attacks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// secretOfHost is a file of the host that no pod may see.
const secretOfHost = "/etc/kedge/kedge.yaml"

// TestPodVolumes lets a pod plant symbolic links to the host in its volume, which other parts may
// follow: a subPath, a copy by a snapshot, an expansion, and kubectl cp. It also fills what it may
// write to: its volume and its termination message.
func TestPodVolumes(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "e2fsprogs")
	host, _ := harness.NewNetwork(t).NewHostOnDisk(t, "server-1")
	cluster.PreloadBusybox(t, host)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	secret, err := os.ReadFile(host.Path(secretOfHost))
	if err != nil || len(secret) == 0 {
		t.Fatalf("the host has no secret: %v", err)
	}
	const podOf = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[2]s}}]
  containers:
  - name: main
    image: %[3]s
    command: [sh, -c, %[4]q]
    volumeMounts: [{name: data, mountPath: /data%[5]s}]
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
`
	const claimOf = `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}%s}
`
	const rest = "; touch /tmp/ready; exec sleep 1000000"
	run := func(name, claim, command, more string) {
		c.Apply(fmt.Sprintf(podOf, name, claim, image.BusyboxName, command, more))
	}
	c.Apply(fmt.Sprintf(claimOf, "data", ""))
	run("attacker", "data", "ln -s / /data/root; ln -s "+secretOfHost+" /data/file; ln -s ../../../../../../../../../.. /data/up; "+
		"mkdir /data/honest; echo kept >/data/honest/file; sync"+rest, "")
	c.Pod("attacker")

	t.Log("a subPath through a link")
	for name, path := range map[string]string{"root": "root/etc/kedge", "file": "file", "up": "up/etc/kedge"} {
		run("sub-"+name, "data", "cat /data /data/kedge.yaml; true"+rest, ", subPath: "+path)
		c.Eventually("pod sub-"+name+" to be refused, or to run", func() error {
			pod, err := c.Client.CoreV1().Pods(cluster.Namespace).Get(t.Context(), "sub-"+name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, status := range pod.Status.ContainerStatuses {
				if waiting := status.State.Waiting; waiting != nil && strings.HasPrefix(waiting.Reason, "CreateContainer") || status.State.Running != nil || status.State.Terminated != nil {
					return nil
				}
			}
			return fmt.Errorf("it is %+v", pod.Status)
		})
		if said, _ := c.TryKubectl("", "logs", "sub-"+name); strings.Contains(said, "client-key-data") {
			t.Errorf("through the subPath %s it read %s", path, secretOfHost)
		}
	}
	run("sub-honest", "data", "cat /data/file"+rest, ", subPath: honest")
	c.Pod("sub-honest")
	if said := c.Kubectl("logs", "sub-honest"); said != "kept" {
		t.Errorf("an honest subPath has %q", said)
	}

	t.Log("a copy that is made while the pod writes")
	c.Apply("---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: saved}\nspec: {source: {persistentVolumeClaimName: data}}\n")
	c.Kubectl("patch", "pvc", "data", "--patch", `{"spec": {"resources": {"requests": {"storage": "96Mi"}}}}`)
	// The snapshot may have been taken after the claim has grown.
	c.Apply(strings.Replace(fmt.Sprintf(claimOf, "copy", ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: saved}"), "64Mi", "96Mi", 1))
	run("copied", "copy", "ls -l /data; cat /data/honest/file; cat /data/file /data/root"+secretOfHost+"; true"+rest, "")
	c.Pod("copied")
	said := c.Kubectl("logs", "copied")
	if strings.Contains(said, "client-key-data") || !strings.Contains(said, "-> "+secretOfHost) || !strings.Contains(said, "kept") {
		t.Errorf("the copy has\n%s", said)
	}

	t.Log("kubectl cp")
	folder := host.Scratch("copied")
	output, err := host.Kedge(t.Context(), "kubectl", "cp", "attacker:/data/file", filepath.Join(folder, "file")).CombinedOutput()
	if got, _ := os.ReadFile(host.Path(filepath.Join(folder, "file"))); strings.Contains(string(got), "client-key-data") {
		t.Errorf("kubectl cp has followed the link on the host: %v %s", err, output)
	}

	t.Log("what the pod fills")
	run("filler", "copy", "dd if=/dev/zero of=/data/full bs=1M count=500; "+
		"dd if=/dev/zero bs=1M count=3 2>/dev/null | tr '\\0' w >/dev/termination-log; "+
		"exit 3", "")
	var filled *corev1.Pod
	c.Eventually("the filler to end", func() error {
		pod, err := c.Client.CoreV1().Pods(cluster.Namespace).Get(t.Context(), "filler", metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("it is %s", pod.Status.Phase)
		}
		filled = pod
		return err
	})
	ended := filled.Status.ContainerStatuses[0].State.Terminated
	if ended == nil || ended.ExitCode != 3 || len(ended.Message) > 4096 || !strings.HasPrefix(ended.Message, "www") {
		t.Errorf("it ended with %.200v", ended)
	}
	if got := c.Kubectl("exec", "copied", "--", "sh", "-c", "wc -c </data/full"); len(got) > 8 {
		t.Errorf("of a volume of 64 MiB it has filled %s bytes", got)
	}
	c.Kubectl("create", "configmap", "written-meanwhile")
}
