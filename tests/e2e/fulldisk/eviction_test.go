package fulldisk

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// recovery limits how long the kubelet may take until the disk has space again. It learns how much a pod's volumes
// use once a minute.
const recovery = 5 * time.Minute

// eater is a pod that takes all space of the disk within seconds, and whatever is freed later. Because of its priority, the
// kubelet evicts other pods first.
const eater = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: last}
value: 1000
---
apiVersion: v1
kind: Pod
metadata: {name: eater}
spec:
  restartPolicy: Never
  priorityClassName: last
  volumes: [{name: disk, emptyDir: {}}]
  containers:
  - name: main
    image: %s
    command: [sh, -c, "i=0; while fallocate -l 64M /disk/$i; do i=$((i + 1)); done; while true; do head -c 4096 /dev/zero >>/disk/rest || sleep 0.01; done"]
    volumeMounts: [{name: disk, mountPath: /disk}]
`

// TestPodFillsDisk has a pod fill the whole disk of a server, until the API can write nothing. The kubelet must evict this
// pod in the end, and everything must work again. Nobody frees space but kedge.
func TestPodFillsDisk(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "e2fsprogs")
	host, _ := harness.NewNetwork(t).NewHostOnDisk(t, "server-1")
	cluster.Preload(t, host)
	cluster.PreloadBusybox(t, host)
	server := host.StartServer(t, "--kubelet-arg=eviction-pressure-transition-period=10s")
	server.WaitReady()
	c := cluster.Of(t, server)
	c.RunDeployment("web")
	c.Apply(fmt.Sprintf(eater, image.BusyboxName))
	// These objects fill what the database has on the disk already.
	large, number := strings.Repeat("x", 900<<10), 0
	harness.Eventually(t, recovery, "a write to be refused", func() error {
		number++
		_, err := server.Client().CoreV1().ConfigMaps(namespace).Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", number)}, Data: map[string]string{"text": large}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "disk is full") {
			return fmt.Errorf("write %d: %v", number, err)
		}
		return nil
	})
	pods := server.Client().CoreV1().Pods(namespace)
	harness.Eventually(t, recovery, "the pod that fills the disk to be evicted", func() error {
		pod, err := pods.Get(t.Context(), "eater", metav1.GetOptions{})
		if err == nil && (pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "Evicted") {
			err = fmt.Errorf("it is %s: %s", pod.Status.Phase, pod.Status.Reason)
		}
		return err
	})
	harness.Eventually(t, recovery, "pods to run again", func() error {
		_, err := c.TryKubectl("", "rollout", "status", "deployment/web", "--timeout=10s")
		return err
	})
}
