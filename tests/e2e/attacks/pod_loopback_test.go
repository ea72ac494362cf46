package attacks

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestPodReachesLoopback has a pod with the rights that every pod has ask its node for
// what the node serves to itself alone, on 127.0.0.1. A pod with a hostPort is there,
// for which the kernel is told to route such addresses.
func TestPodReachesLoopback(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "curl")
	c := cluster.Start(t, harness.NewNetwork(t))
	host := c.Server.Host
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: honest}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]s
    args: [serve, "8080"]
    ports: [{containerPort: 8080, hostPort: 8088}]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: attacker}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[1]s, args: [sleep]}]
`, image.TestserverName))
	c.Pod("honest")
	c.Pod("attacker")
	// What listens there: containerd's streams, the service proxy's health, controllers,
	// scheduler, and all that listens on every address.
	for _, port := range []string{"10010", "10256", "10257", "10259", "6443"} {
		if output, err := host.Command(t.Context(), "curl", "--silent", "--insecure", "--max-time", "5", "http://127.0.0.1:"+port).CombinedOutput(); err != nil {
			// Any answer shows that somebody listens: it may not be one of HTTP.
			if strings.Contains(err.Error(), "exit status 7") {
				t.Errorf("nobody listens on port %s: %v %s", port, err, output)
			}
		}
		if got := c.Kubectl("exec", "attacker", "--", "/testserver", "loopback", port); got != "nothing" {
			t.Errorf("port %s of the node's 127.0.0.1 is %s to a pod", port, got)
		}
	}
	t.Log("the hostPort works for the node, and for pods")
	for _, address := range []string{"127.0.0.1", host.Address.String()} {
		c.Eventually("an answer at "+address, func() error {
			output, err := host.Command(t.Context(), "curl", "--silent", "--show-error", "--max-time", "5", "http://"+net.JoinHostPort(address, "8088")).CombinedOutput()
			if err == nil && !strings.Contains(string(output), "hostname=honest") {
				err = fmt.Errorf("it is %s", output)
			}
			return err
		})
	}
	c.Answers("attacker", "http://"+net.JoinHostPort(host.Address.String(), "8088"), "honest")
}
