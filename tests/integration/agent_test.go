package integration

import (
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestSecondNode has an agent join a server. A pod on each node must reach the other by address and
// by name. tests/e2e covers the faults of a join.
func TestSecondNode(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	here, there := c.RunWeb("here", "server-1"), c.RunWeb("there", "agent-1")
	c.ServeWeb()

	c.Answers("here", "http://"+there.Status.PodIP+":"+cluster.WebPort+"/", "there")
	c.Answers("there", "http://"+here.Status.PodIP+":"+cluster.WebPort+"/", "here")
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
	c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there")
	if log := c.Kubectl("logs", "there"); !strings.Contains(log, "served / to "+here.Status.PodIP) {
		t.Errorf("the log of the agent's pod is %q", log)
	}
	before := c.Containers()
	agent.Restart()
	c.WantSameContainers(before)
}
