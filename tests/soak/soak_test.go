// Package soak plays a busy week in an hour: a cluster with several servers, in which users change things and machines fail, in an
// order that a seed decides. README.md says what is done and what is asked.
package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	// defaultTime is how long the test runs without the variable HOURS.
	defaultTime = 4 * time.Minute
	// atOnce is how often, out of ten times, a second thing happens before the cluster is well again.
	atOnce = 3
)

// TestSoak lets things happen for HOURS hours, in the order of the seed SEED. After each of them the cluster must become well again.
func TestSoak(t *testing.T) {
	harness.Require(t)
	duration, seed := settings(t)
	t.Logf("seed %d, for %s", seed, duration)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	w.wantWell("at the beginning")
	growth := newGrowth()
	growth.measure(w)
	begun := time.Now()
	for turn := 1; time.Since(begun) < duration; turn++ {
		chosen := []action{actions[random.IntN(len(actions))]}
		if random.IntN(10) < atOnce {
			chosen = append(chosen, actions[random.IntN(len(actions))])
		}
		what := ""
		for _, a := range chosen {
			what += ", " + a.name
			a.do(w, random)
		}
		took := time.Now()
		w.wantWell("after " + what[2:])
		t.Logf("%6s  turn %d: %s; well again after %.0f s", time.Since(begun).Round(time.Second), turn, what[2:], time.Since(took).Seconds())
		growth.measure(w)
	}
	w.writes.Stop()
	w.writes.WantAll(w.Client)
	growth.judge(t)
}

// settings returns how long the test runs, and its seed.
func settings(t *testing.T) (duration time.Duration, seed uint64) {
	t.Helper()
	duration, seed = defaultTime, rand.Uint64N(1_000_000)
	var err error
	if text := os.Getenv("HOURS"); text != "" {
		var hours float64
		if hours, err = strconv.ParseFloat(text, 64); err != nil {
			t.Fatal(fmt.Errorf("HOURS: %w", err))
		}
		duration = time.Duration(hours * float64(time.Hour))
	}
	if text := os.Getenv("SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(fmt.Errorf("SEED: %w", err))
		}
	}
	return duration, seed
}
