package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// inContainer is a pod whose privileged container runs kedge with a cluster of its own, as a job of CI services does. It
// sees the folders of this machine with kedge, an image and a manifest.
const inContainer = `
apiVersion: v1
kind: Pod
metadata: {name: job}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: job
    image: %[1]s
    imagePullPolicy: Never
    securityContext: {privileged: true}
    # The image of the test has no /usr, which other images have.
    command: [sh, -c, mkdir /usr; exec /opt/kedge run --image /image/%[4]s --manifest /manifests --wait -- /opt/kedge kubectl get pods -o wide]
    volumeMounts:
    - {name: kedge, mountPath: /opt}
    - {name: image, mountPath: /image}
    - {name: manifests, mountPath: /manifests}
  volumes:
  - {name: kedge, hostPath: {path: %[2]s}}
  - {name: image, hostPath: {path: %[3]s}}
  - {name: manifests, hostPath: {path: %[5]s}}
`

// TestInContainer runs kedge run in a privileged container, which has a container runtime and cgroups of the machine
// around it. A pod runs in the cluster in the container.
func TestInContainer(t *testing.T) {
	m := newMachine(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := image.Busybox(repository)
	if err != nil {
		t.Fatal(err)
	}
	m.Preload(busybox)
	server := m.StartServer(t)
	server.WaitReady()
	web := m.testserver()
	path := filepath.Join(m.Scratch("pods"), "job.yaml")
	pod := fmt.Sprintf(inContainer, image.BusyboxName, filepath.Dir(os.Getenv("KEDGE_BINARY")), filepath.Dir(web), filepath.Base(web),
		filepath.Dir(m.manifest("web")))
	if err := os.WriteFile(path, []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) (string, error) {
		output, err := m.Kedge(t.Context(), append([]string{"kubectl"}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(output)), err
	}
	if output, err := kubectl("apply", "-f", path); err != nil {
		t.Fatal(output)
	}
	phase := ""
	harness.Eventually(t, 3*time.Minute, "the job to end", func() (err error) {
		phase, err = kubectl("get", "pod", "job", "-o", "jsonpath={.status.phase}")
		if err == nil && phase != "Succeeded" && phase != "Failed" {
			err = fmt.Errorf("it is %s", phase)
		}
		return err
	})
	log, err := kubectl("logs", "job")
	if err != nil || phase != "Succeeded" || !strings.Contains(log, "server-1") || !strings.Contains(log, "1/1") {
		status, _ := kubectl("get", "pod", "job", "-o", "jsonpath={.status.containerStatuses}")
		t.Errorf("the log of the job is (%v):\n%s\nand its status:\n%s", err, log, status)
	}
	if output, err := kubectl("delete", "pod", "job"); err != nil {
		t.Error(output)
	}
}
