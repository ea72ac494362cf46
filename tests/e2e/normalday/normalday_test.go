// Package normalday simulates an ordinary day of a cluster. Faults of users and their pods must be
// reported by Events. The log level error is only for faults of kedge and of its host.
package normalday

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const troubled = `
apiVersion: v1
kind: Pod
metadata: {name: no-image}
spec: {containers: [{name: main, image: "nowhere.test/none:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: bad-name}
spec: {containers: [{name: main, image: "Not/A Name"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: crashes}
spec: {containers: [{name: main, image: IMAGE, args: [no-such-command]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: no-executable}
spec: {containers: [{name: main, image: IMAGE, command: [/none]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: unhealthy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    args: [sleep]
    livenessProbe: {exec: {command: [/none]}, periodSeconds: 1, failureThreshold: 2}
    readinessProbe: {httpGet: {path: /, port: 9}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: no-config}
spec:
  containers: [{name: main, image: IMAGE, args: [sleep], envFrom: [{configMapRef: {name: none}}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: no-volume}
spec:
  containers: [{name: main, image: IMAGE, args: [sleep], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, secret: {secretName: none}}]
---
apiVersion: v1
kind: Pod
metadata: {name: too-large}
spec: {containers: [{name: main, image: IMAGE, args: [sleep], resources: {requests: {cpu: "999"}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: fails}
spec:
  backoffLimit: 1
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: IMAGE, args: [no-such-command]}]}
`

func TestNormalDay(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	apply := strings.ReplaceAll(troubled, "IMAGE", image.TestserverName)

	t.Log("pods that cannot run")
	c.Apply(apply)
	for pod, words := range map[string]string{
		"no-image": "Failed to pull image", "bad-name": "couldn't parse image name", "crashes": "Back-off restarting",
		"no-executable": "no such file", "unhealthy": "Liveness probe", "no-config": `configmap "none" not found`,
		"no-volume": `secret "none" not found`, "too-large": "Insufficient cpu",
	} {
		c.Told(cluster.Namespace, pod, words)
	}

	t.Log("rollouts, and commands in pods")
	c.RunDeployment("rolls")
	for range 3 {
		c.Kubectl("rollout", "restart", "deployment/rolls")
		c.Kubectl("rollout", "status", "deployment/rolls", "--timeout="+cluster.Patience.String())
	}
	c.RunWeb("web", agent.Host.Name)
	c.ServeWeb()
	for _, command := range [][]string{
		{"exec", "web", "--", "/none"}, {"exec", "web", "--", "/testserver", "no-such-command"},
		{"exec", "web", "-c", "none", "--", "/testserver"}, {"logs", "crashes", "--previous"}, {"logs", "none"},
	} {
		output, err := c.TryKubectl("", command...)
		t.Logf("kubectl %s: %v %s", strings.Join(command, " "), err, output)
	}
	c.Kubectl("logs", "web")

	t.Log("a drain, and deletions")
	c.Kubectl("drain", agent.Host.Name, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+cluster.Patience.String())
	c.Kubectl("rollout", "status", "deployment/rolls", "--timeout="+cluster.Patience.String())
	c.Kubectl("uncordon", agent.Host.Name)
	c.TryKubectl(apply, "delete", "--wait", "-f", "-")
	c.Kubectl("delete", "deployment", "rolls", "--cascade=foreground")
	c.Kubectl("create", "namespace", "short-lived")
	c.Kubectl("-n", "short-lived", "create", "configmap", "some")
	c.Kubectl("delete", "namespace", "short-lived")
	// Each message that upstream repeats at intervals appears at least once.
	time.Sleep(quiet)

	t.Log("restarts, and an agent that leaves")
	agent.Restart()
	agent.WaitReady()
	c.Server.Restart()
	c.Server.WaitReady()
	c.WaitNode(agent.Host.Name, corev1.ConditionTrue)
	agent.Terminate()
	c.Kubectl("delete", "node", agent.Host.Name)
	c.Server.Terminate()

	wantNoErrors(t, map[string]string{"the server": c.Server.Log(), "the agent": agent.Log()})
}

// wantNoErrors fails the test for each line of a log that is for a fault of kedge or of its host.
func wantNoErrors(t *testing.T, logs map[string]string) {
	t.Helper()
	for host, text := range logs {
		for line := range strings.Lines(text) {
			if strings.Contains(line, "level=error") || strings.Contains(line, "level=fatal") || strings.Contains(line, "component=kubernetes") {
				t.Errorf("%s says: %s", host, line)
			}
		}
	}
}

// quiet is longer than the longest interval at which the kubelet syncs all pods.
const quiet = 30 * time.Second
