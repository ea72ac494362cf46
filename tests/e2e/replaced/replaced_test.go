// Package replaced tests nodes that are deleted and join again, that get another name, and that die
// and are replaced by another machine.
package replaced

import (
	"fmt"
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
	agent.WaitLog("node agent-1 was deleted from the cluster")
	c.Eventually("the node's pod to be gone", func() error {
		if pods := c.Kubectl("get", "pods", "-o", "name"); pods != "" {
			return fmt.Errorf("there are %s", pods)
		}
		return nil
	})
	agent.Restart()
	c.RunWeb("third", "agent-1")

	t.Log("renamed: a new node, and the old one stays until it is deleted")
	agent.Terminate()
	renamed := agent.Host.StartAgent(t, c.Server, "--node-name=agent-2")
	c.WaitNode("agent-2", "True")
	c.WaitNode("agent-1", "Unknown")
	c.RunWeb("fourth", "agent-2")
	c.Eventually("the old name's containers to be gone", func() error {
		output, err := renamed.Host.Kedge(t.Context(), "crictl", "ps", "--quiet", "--label", "io.kubernetes.pod.name=third").Output()
		if err == nil && len(output) > 0 {
			err = fmt.Errorf("third still runs: %s", output)
		}
		return err
	})

	t.Log("renamed back: the host's password is for both names")
	renamed.Terminate()
	agent.Start()
	agent.WaitReady()
	agent.Terminate()
	renamed.Start()
	c.WaitNode("agent-2", "True")
	c.Kubectl("delete", "node", "agent-1")

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
