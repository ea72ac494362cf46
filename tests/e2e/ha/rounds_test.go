package ha

import (
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
)

const (
	rounds = 20
	// answersAgain limits how long the API may be unavailable when a server dies.
	answersAgain = 5 * time.Second
)

// TestKillEachInTurn kills each of three servers in turn, several times, while a client writes and
// watches. All acknowledged writes must be there, and the watch must have received each event once.
func TestKillEachInTurn(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := cluster.Gather(t, network.NewHost(t, "server-1"), network.NewHost(t, "server-2"), network.NewHost(t, "server-3"))
	c := startTraffic(t, servers...)
	var gaps []time.Duration
	for round := range rounds {
		// In most rounds this is the leader of etcd.
		server := servers[round%len(servers)]
		if round%2 == 0 {
			server = member.Leader(t, servers...)
		}
		c.goesOn()
		c.waits()
		server.Kill9()
		c.goesOn()
		gaps = append(gaps, c.waits())
		t.Logf("round %d: without %s the longest wait for a write was %s", round, server.Host.Name, gaps[round].Round(time.Millisecond))
		server.Start()
		server.WaitReady()
	}
	c.end()
	slices.Sort(gaps)
	middle := gaps[rounds/2]
	t.Logf("the API was unavailable for %s in the median and %s at most", middle.Round(time.Millisecond), gaps[rounds-1].Round(time.Millisecond))
	// In a single round the machine may have been busy with other work.
	if middle > answersAgain {
		t.Errorf("the API is gone for %s when a server dies, want at most %s", middle, answersAgain)
	}
}
