package ha

import (
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	rounds = 20
	// answersAgain is how long the API may be gone when a server dies.
	answersAgain = 5 * time.Second
)

// TestKillEachInTurn kills each of three servers in turn, again and again, while a
// client writes and watches: all that was acknowledged is there, and the watch had
// each event once.
func TestKillEachInTurn(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := gather(t, network.NewHost(t, "server-1"), network.NewHost(t, "server-2"), network.NewHost(t, "server-3"))
	c := startTraffic(t, servers...)
	var gaps []time.Duration
	for round := range rounds {
		// In most rounds it is the one that leads etcd.
		server := servers[round%len(servers)]
		if round%2 == 0 {
			server = leader(t, servers...)
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
	t.Logf("the API was gone for %s in the middle, and for %s at most", middle.Round(time.Millisecond), gaps[rounds-1].Round(time.Millisecond))
	// A single round may have met a machine that is busy with something else.
	if middle > answersAgain {
		t.Errorf("the API is gone for %s when a server dies, want at most %s", middle, answersAgain)
	}
}
