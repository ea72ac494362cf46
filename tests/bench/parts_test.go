package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestParts measures what the optional parts of a server use while nobody uses them: a server with
// all parts and one without are watched at the same time, as often as BENCH_RUNS says.
func TestParts(t *testing.T) {
	harness.Require(t)
	report := startReport(t)
	ways := partsWays()
	results := map[string][]result{}
	for round := range report.Options.Runs {
		t.Run(fmt.Sprint("run-", round+1), func(t *testing.T) { measureParts(t, report, ways, results) })
		slices.Reverse(ways)
	}
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	parts := &partsReport{origin: report.origin, Options: report.Options, Results: results}
	fmt.Print(parts.Table())
	if err := writeJSON(filepath.Join(report.repository, partsFile), parts); err != nil {
		t.Fatal(err)
	}
}

// measureParts adds a result of each way to start a server.
func measureParts(t *testing.T, report *report, ways []string, results map[string][]result) {
	installations := make([]*installation, len(ways))
	for n, way := range ways {
		useCopy(t)
		i := newInstallation(t, report, kedgeName, 0)
		i.args = partsArgs(way)
		if _, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t)); err != nil {
			t.Fatal(err)
		}
		installations[n] = i
	}
	time.Sleep(report.Options.Settle)
	runs := make([]result, len(ways))
	measured := make(chan error)
	for n, i := range installations {
		go func() { measured <- runs[n].measureIdle(i.ctx, i, report.Options.Idle) }()
	}
	for range ways {
		if err := <-measured; err != nil {
			t.Error(err)
		}
	}
	for n, way := range ways {
		results[way] = append(results[way], runs[n])
		fmt.Printf("%s: PSS %.1f MiB, anonymous %.1f MiB, CPU %.2f %%\n", way, runs[n].PSS/mebibyte, runs[n].Anonymous/mebibyte, runs[n].CPU)
	}
}
