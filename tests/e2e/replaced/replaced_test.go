// Package replaced has nodes that are deleted and join again, that get another
// name, and that die and are replaced by another machine.
package replaced

import (
	"os"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestNodeReplaced(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	c.RunWeb("first", "agent-1")

	t.Log("deleted, and joined again")
	agent.Terminate()
	c.Kubectl("delete", "node", "agent-1")
	agent.Start()
	agent.WaitReady()
	c.RunWeb("second", "agent-1")

	t.Log("deleted while it runs: upstream's kubelet registers at its start only")
	c.Kubectl("delete", "node", "agent-1")
	agent.Restart()
	c.RunWeb("third", "agent-1")

	t.Log("renamed")
	agent.Terminate()
	renamed := agent.Host.StartAgent(t, c.Server, "--node-name=agent-2")
	c.WaitNode("agent-2", "True")
	c.Kubectl("delete", "node", "agent-1")
	c.RunWeb("fourth", "agent-2")

	t.Log("dead, and replaced by another machine")
	renamed.Kill9()
	agent.Host.CutLink()
	other := cluster.NewHost(t, network, "other")
	refused := other.StartAgent(t, c.Server, "--node-name=agent-2")
	refused.WaitLog("the name agent-2 is taken by another node")
	refused.Kill9()
	c.Kubectl("delete", "node", "agent-2")
	other.StartAgent(t, c.Server, "--node-name=agent-2")
	c.WaitNode("agent-2", "True")
	c.RunWeb("fifth", "agent-2")
	c.ServeWeb()
	c.Answers("fifth", "http://web.default.svc.cluster.local/", "fifth")
}
