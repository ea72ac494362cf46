// Package restart kills a server and agents at bad moments. Pods must keep running, and all must
// connect again.
package restart

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestRestarts(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "agent-1")
	c.ServeWeb()
	before := c.Containers()
	works := func(what string) {
		t.Helper()
		t.Log(what)
		c.WaitNode("agent-1", corev1.ConditionTrue)
		c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
		c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there")
		c.WantSameContainers(before)
	}
	works("at first")

	c.Server.Kill9()
	c.Server.Start()
	c.Server.WaitReady()
	works("after the server was killed")

	// The cluster is busy: the API goes away while pods are made.
	c.Apply(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: busy}
spec:
  selector: {matchLabels: {app: busy}}
  template:
    metadata: {labels: {app: busy}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "kedge.test/testserver:1", args: [sleep]}]
`)
	c.Server.Kill9()
	c.Server.Start()
	c.Server.WaitReady()
	c.Kubectl("rollout", "status", "daemonset/busy", "--timeout="+cluster.Patience.String())
	c.Kubectl("delete", "daemonset", "busy", "--cascade=foreground")
	works("after the server was killed while pods were made")

	agent.Kill9()
	agent.Start()
	agent.WaitReady()
	works("after the agent was killed")

	c.Server.Terminate()
	agent.Terminate()
	agent.Start()
	agent.WaitLog("Starting with the cluster's settings of the last start")
	c.Server.Start()
	c.Server.WaitReady()
	agent.WaitReady()
	works("after the agent was started while no server was there")
}
