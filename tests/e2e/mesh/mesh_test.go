// Package mesh connects the pods of nodes behind NATs.
package mesh

import (
	"os"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestNodesBehindNAT(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--flannel-backend=mesh")
	c.Join(network.BehindNAT(t), "agent-1")
	c.Join(network.BehindNAT(t), "agent-2")
	c.RunWeb("web-0", c.Server.Host.Name)
	c.RunWeb("web-1", "agent-1")
	c.RunWeb("web-2", "agent-2")
	for _, from := range []string{"web-0", "web-1", "web-2"} {
		for _, to := range []string{"web-0", "web-1", "web-2"} {
			if from != to {
				c.Answers(from, "http://"+c.Pod(to).Status.PodIP+":"+cluster.WebPort+"/", to)
			}
		}
	}
}
