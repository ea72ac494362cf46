package loadbalancer

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestPartition kills the node that has an address of a pool, just after the only other node that may
// have it has come back from a partition.
func TestPartition(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.RunWeb("web-1", b.hosts[0].Name)
	b.Kubectl("label", "node", b.hosts[0].Name, "node.kubernetes.io/exclude-from-external-load-balancers=")
	b.Apply(`
apiVersion: kedge.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: lan}
spec: {addresses: [172.31.0.200]}
`)
	const address = "172.31.0.200"
	b.serve("web", 80, "kedge.dev/pool: lan")
	b.has("web", address)
	b.reach(address, 80, "hostname=web-")
	for _, long := range []time.Duration{4 * time.Second, 8 * time.Second, 15 * time.Second} {
		i := slices.IndexFunc(b.agents, func(agent *harness.Agent) bool { return hasAddress(t.Context(), agent.Host, address) })
		if i < 0 {
			t.Fatal("no agent has the address")
		}
		holder, other := b.agents[i], b.agents[1-i]
		other.Host.CutLink()
		time.Sleep(long)
		other.Host.HealLink()
		time.Sleep(time.Second)
		holder.Kill9()
		began := time.Now()
		b.Eventually("the other node to have the address", func() error {
			if !hasAddress(t.Context(), other.Host, address) {
				return errors.New("it has not")
			}
			return nil
		})
		t.Logf("after a partition of %s, the address moved after %s", long, time.Since(began).Round(100*time.Millisecond))
		holder.Start()
		holder.WaitReady()
	}
}
