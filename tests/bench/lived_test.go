package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestLived measures what things cost that a cluster has after a while, and what comes back after they are
// gone. -run selects lives: see README.md. It fails only if something does not work.
func TestLived(t *testing.T) {
	harness.Require(t)
	chosen, err := readLivedOptions()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	base, err := newReport(repository, options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(repository, livedDir), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Concat(base.paths[kedgeName], base.paths[baselineName]) {
		if err := leavePageCache(path); err != nil {
			t.Fatal(err)
		}
	}
	report := &livedReport{origin: base.origin, Options: chosen, Lives: map[string]lived{}}
	for _, life := range lives {
		t.Run(life.name, func(t *testing.T) {
			if !life.alone {
				live(t, base, report, life, chosen.Systems)
				return
			}
			for _, system := range chosen.Systems {
				t.Run(system, func(t *testing.T) { live(t, base, report, life, []string{system}) })
			}
		})
	}
	fmt.Print(report.Table())
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	if len(report.Lives) < len(lives) || len(chosen.Systems) < len(systems()) {
		return // -run or the environment chose some: the last whole result stays
	}
	if err := writeJSON(filepath.Join(repository, livedFile), report); err != nil {
		t.Fatal(err)
	}
}

// live starts systems, and takes them through the steps of a life. They take each step one after the
// other, and then rest and are watched at the same time.
func live(t *testing.T, base *report, report *livedReport, life life, systems []string) {
	var clusters []*livedCluster
	var steps [][]livedStep
	for _, system := range systems {
		c := startLived(t, base, report.Options, system)
		clusters, steps = append(clusters, c), append(steps, c.withDeletion(life.steps(c)))
	}
	for n, step := range steps[0] {
		stages := make([]stage, len(clusters))
		// kedge is the last, so that it rests for exactly the time of the targets.
		for i, c := range slices.Backward(clusters) {
			var err error
			if stages[i], err = c.take(steps[i][n]); err != nil {
				t.Fatal(err)
			}
		}
		rest := report.Options.Settle
		if step.burst {
			rest = report.Options.Burst
		}
		time.Sleep(rest)
		measured := make(chan error)
		for i, c := range clusters {
			go func() { measured <- c.measure(&stages[i]) }()
		}
		var err error
		for range clusters {
			err = errors.Join(err, <-measured)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range clusters {
			path := filepath.Join(c.repository, livedDir, fmt.Sprintf("%s-%d-%s-%s", life.name, n, fileName(step.name), c.system))
			if err := c.saveProfiles(&stages[i], path); err != nil {
				t.Fatal(err)
			}
			report.add(life.name, c.system, stages[i])
			fmt.Printf("%s: %s: %s\n", life.name, c.system, stages[i])
		}
	}
}
