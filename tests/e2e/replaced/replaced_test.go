// Package replaced has nodes that are deleted and join again, that get another
// name, and that die and are replaced by another machine.
package replaced

import (
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	gone(c, "first")
	c.RunWeb("second", "agent-1")

	t.Log("deleted while it runs")
	c.Kubectl("delete", "node", "agent-1")
	c.WaitNode("agent-1", "True")
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

// gone waits until a pod was deleted with its node.
func gone(c *cluster.Cluster, pod string) {
	c.Helper()
	c.Eventually("pod "+pod+" to be gone", func() error {
		_, err := c.Client.CoreV1().Pods(cluster.Namespace).Get(c.Context(), pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there, %v", err)
	})
}
