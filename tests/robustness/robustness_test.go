// Package robustness runs the traffic of etcd's robustness tests on kedge's datastores while faults
// happen to them, and has the history judged by etcd's validators. README.md says how.
package robustness

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/store"
	"github.com/kedge-dev/kedge/tests/robustness/served"
)

var suite harness.Suite

func TestMain(m *testing.M) {
	if served.IsChild() {
		os.Exit(served.Main(os.Args[2:]))
	}
	os.Exit(suite.Main(m))
}

// buildJudge builds the judge, and returns its path.
var buildJudge = sync.OnceValues(func() (string, error) {
	repository, err := harness.Repository()
	if err != nil {
		return "", err
	}
	folder, err := os.MkdirTemp("", "judge")
	if err != nil {
		return "", err
	}
	suite.Cleanup(func() { os.RemoveAll(folder) })
	program := filepath.Join(folder, "suite")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join(repository, "tests/robustness/suite")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the judge: %w: %s", err, output)
	}
	return program, nil
})

func judgeProgram(t *testing.T) string {
	t.Helper()
	program, err := buildJudge()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// number returns the number in a variable, or what it is without the variable.
func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is not a number: %v", variable, err)
	}
	return value
}

// TestRobustness runs each datastore RUNS times, with seeds from SEED on.
func TestRobustness(t *testing.T) {
	harness.Require(t)
	runs, first := number(t, "RUNS", 1), number(t, "SEED", rand.Uint64N(1_000_000))
	for _, datastore := range []struct {
		name string
		// start returns a function that makes an empty datastore for each run.
		start func(*testing.T) func(*testing.T) *target
	}{
		{"SQLite", fresh(func(t *testing.T) *target { on, _ := newSQLite(t); return on })},
		{"PostgreSQL", fresh(func(t *testing.T) *target { return newShared(t, store.NewPostgreSQL) })},
		{"MariaDB", fresh(func(t *testing.T) *target { return newShared(t, store.NewMariaDB) })},
		{"etcd", newEtcd},
	} {
		t.Run(datastore.name, func(t *testing.T) {
			t.Parallel()
			prepare, total := datastore.start(t), &totals{}
			for seed := first; seed < first+runs; seed++ {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					on := prepare(t)
					on.histories = historyFolder(datastore.name, seed)
					total.add(t, seed, run(t, judgeProgram(t), on, seed), on.histories)
				})
			}
			t.Logf("%s, seeds %d to %d: %v", datastore.name, first, first+runs-1, total)
		})
	}
}

// leastChanges is how many changes a run needs to show something. A machine that is busy with other things may make
// fewer.
const leastChanges = 100

// totals are those of all runs of a datastore.
type totals struct {
	runs, judged, violations                   int
	requests, failed, changes, watches, events int
}

func (s *totals) String() string {
	return fmt.Sprintf("%d runs, %d judged, %d violations; %d requests, of which %d without an answer, %d changes, %d watches with %d events",
		s.runs, s.judged, s.violations, s.requests, s.failed, s.changes, s.watches, s.events)
}

// add adds a run, and fails the test if there is a violation.
func (s *totals) add(t *testing.T, seed uint64, v verdict, histories string) {
	t.Helper()
	t.Logf("seed %d: %v", seed, v.Counts)
	s.runs++
	if v.Violation == "" && v.Inconclusive == "" && v.Counts["Changes"] < leastChanges {
		v.Inconclusive = "there are too few changes"
	}
	switch {
	case v.Violation != "":
		s.violations++
		t.Errorf("seed %d: %s\nThe history is in %s", seed, v.Violation, histories)
	case v.Inconclusive != "":
		t.Logf("seed %d shows nothing: %s", seed, v.Inconclusive)
		return
	}
	s.judged++
	s.requests += v.Counts["Requests"]
	s.failed += v.Counts["Failed"]
	s.changes += v.Counts["Changes"]
	s.watches += v.Counts["Watches"]
	s.events += v.Counts["Events"]
}

// fresh is for datastores that each run starts anew.
func fresh(start func(*testing.T) *target) func(*testing.T) func(*testing.T) *target {
	return func(*testing.T) func(*testing.T) *target { return start }
}

// historyFolder returns where a violation leaves its history.
func historyFolder(datastore string, seed uint64) string {
	root := os.Getenv("HISTORIES")
	if root == "" {
		root = filepath.Join(os.TempDir(), "kedge-robustness")
	}
	return filepath.Join(root, datastore, fmt.Sprint(seed))
}

// TestFaults makes a fault on purpose for each validator, which must notice it.
func TestFaults(t *testing.T) {
	harness.Require(t)
	for fault, words := range served.Faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			on, _ := newSQLite(t, "-fault", fault)
			on.histories = t.TempDir()
			on.nemeses, on.endpoints = nil, on.endpoints[1:] // the saboteur is behind the second one
			v := run(t, judgeProgram(t), on, 2)              // an even seed is for traffic with updates
			if !strings.Contains(v.Violation, words) {
				t.Errorf("the judge says %+v", v)
			}
		})
	}
	t.Run("a disk that forgets", func(t *testing.T) {
		t.Parallel()
		on, sqlite := newSQLite(t)
		on.histories, on.nemeses = t.TempDir(), []nemesis{{"a disk that forgets", sqlite.forget}}
		if v := run(t, judgeProgram(t), on, 2); v.Violation == "" {
			t.Errorf("the judge says %+v", v)
		}
	})
}
