// Package mesh connects the pods of nodes behind NATs of all kinds, which cannot reach each other as nodes of a VXLAN must.
package mesh

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// site is a place with a node.
type site struct {
	name string
	// nat is empty for a node that all others reach.
	nat harness.NAT
}

// neighbor is behind the NAT of the site "symmetric", and inner behind one more.
var neighbor, inner = site{"neighbor", ""}, site{"inner", ""}

// TestMatrix finds the way between each two nodes.
func TestMatrix(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--flannel-backend=mesh")
	sites := []site{
		{"server-1", ""}, {"cone", harness.FullCone}, {"address", harness.AddressRestricted}, {"port", harness.PortRestricted},
		{"symmetric", harness.Symmetric}, {"tcp", harness.NoUDP},
	}
	for _, s := range sites[1:] {
		behind := network.Behind(t, s.nat)
		c.Join(behind, s.name)
		if s.nat == harness.Symmetric {
			c.Join(behind, neighbor.name) // in the same network as another node
			c.Join(behind.Behind(t, harness.PortRestricted), inner.name)
		}
	}
	m := &meshed{c, map[string]string{}}
	for _, s := range sites {
		m.ips[s.name] = c.RunWeb("on-"+s.name, s.name).Status.PodIP
	}
	for _, s := range []site{neighbor, inner} {
		m.ips[s.name] = c.RunWeb("on-"+s.name, s.name).Status.PodIP
	}
	t.Run("behind one NAT", func(t *testing.T) { m.in(t).talk(sites[4], neighbor) })
	t.Run("behind two NATs", func(t *testing.T) {
		m.in(t).talk(sites[0], inner)
		m.in(t).talk(sites[4], inner)
	})
	for i, a := range sites {
		for _, b := range sites[i+1:] {
			t.Run(a.name+" and "+b.name, func(t *testing.T) { m.in(t).talk(a, b) })
		}
	}
}

// meshed is a cluster with a pod on each node, whose addresses are ips.
type meshed struct {
	*cluster.Cluster
	ips map[string]string
}

// in returns the cluster for a subtest.
func (c *meshed) in(t *testing.T) *meshed {
	inner := *c.Cluster
	inner.T = t
	return &meshed{&inner, c.ips}
}

// way returns how a node should reach another one.
func way(from, to site) string {
	switch {
	case from.nat == harness.NoUDP, from.nat == "" && to.nat == harness.NoUDP: // the server has the Relay in its own process
		return "relayed by TCP"
	case to.nat == harness.NoUDP, from.nat == harness.PortRestricted && to.nat == harness.Symmetric, from.nat == harness.Symmetric && to.nat == harness.PortRestricted,
		from.nat == harness.Symmetric && to.nat == harness.Symmetric:
		return "relayed"
	}
	return "direct"
}

// connection is what `kedge node ways` says about a way.
type connection struct {
	Node, Way, By string
	RoundTrip     float64 `json:"roundTripMilliseconds"`
	MTU           int
}

// ways returns how a node reaches the others.
func (c *meshed) ways(node string) (map[string]connection, error) {
	output, err := c.Server.Host.Kedge(c.Context(), "node", "ways", node, "-o", "json").Output()
	if err != nil {
		return nil, fmt.Errorf("kedge node ways %s: %w", node, err)
	}
	var told []struct{ Ways []connection }
	if err := json.Unmarshal(output, &told); err != nil || len(told) != 1 {
		return nil, fmt.Errorf("kedge node ways printed %q (%w)", output, err)
	}
	all := map[string]connection{}
	for _, w := range told[0].Ways {
		all[w.Node] = w
	}
	return all, nil
}

// talk lets the pods of two sites talk until the nodes reach each other as they should.
func (c *meshed) talk(a, b site) {
	c.Helper()
	c.Eventually(a.name+" and "+b.name+" to reach each other", func() error {
		for _, pair := range [][2]site{{a, b}, {b, a}} {
			from, to := pair[0], pair[1]
			if _, err := c.TryKubectl("", "exec", "on-"+from.name, "--", "/testserver", "fetch", "http://"+c.ips[to.name]+":"+cluster.WebPort+"/"); err != nil {
				return err
			}
		}
		for _, pair := range [][2]site{{a, b}, {b, a}} {
			from, to := pair[0], pair[1]
			ways, err := c.ways(from.name)
			if err != nil {
				return err
			}
			if got := ways[to.name]; got.Way != way(from, to) || got.RoundTrip <= 0 || got.MTU != 1400 {
				return fmt.Errorf("the way from %s to %s is %+v, want %s", from.name, to.name, got, way(from, to))
			}
		}
		return nil
	})
}
