// Package cut cuts an agent's link for three minutes. Its pods and its DNS must keep working, and
// it must come back by itself.
package cut

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// outage is how long the link is cut. Pods would be evicted after five minutes.
const outage = 3 * time.Minute

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestLinkCut(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "agent-1")
	c.RunWeb("there-too", "agent-1")
	c.ServeWeb()
	c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there", "there-too")
	before := c.Containers()

	healed := time.Now().Add(outage)
	agent.Host.CutLink()
	c.WaitNode("agent-1", corev1.ConditionUnknown)
	for {
		// This looks up an address and a name, on the node alone.
		node := []string{"lookup", "host", "web.default.svc.cluster.local"}
		if address, err := cluster.OnNode(agent.Host, "there", append([]string{"/testserver"}, node...)...); err != nil || !strings.HasPrefix(address, "10.43.") {
			t.Errorf("the cut node's DNS says %q, %v", address, err)
		}
		// The Service also has an endpoint that cannot be reached.
		harness.Eventually(t, cluster.Patience, "a pod of the cut node to answer", func() error {
			answer, err := cluster.OnNode(agent.Host, "there", "/testserver", "fetch", "http://web.default.svc.cluster.local/")
			if err == nil && !strings.HasPrefix(answer, "hostname=there") {
				err = fmt.Errorf("answer %q", answer)
			}
			return err
		})
		if time.Now().After(healed) {
			break
		}
		time.Sleep(10 * time.Second)
	}
	agent.Host.HealLink()
	c.WaitNode("agent-1", corev1.ConditionTrue)

	c.Answers("there", "http://web.default.svc.cluster.local/", "here", "there", "there-too")
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there", "there-too")
	c.WantSameContainers(before)
	c.RunWeb("new", "agent-1")
}
