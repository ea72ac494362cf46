package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestBench measures kedge and the baseline in turns. It fails only if one of them does not start.
// -run selects parts of it: see README.md.
func TestBench(t *testing.T) {
	harness.Require(t)
	report := startReport(t)
	fmt.Println(report.Machine)
	chosen, parts := 0, 0
	part := func(t *testing.T, name string, f func(t *testing.T)) {
		parts++
		t.Run(name, func(t *testing.T) {
			chosen++
			f(t)
		})
	}
	part(t, "sizes", func(t *testing.T) {
		if err := report.measureSizes(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	// This comes first, so that the executables are in the page cache, as after a boot.
	for _, path := range slices.Concat(report.paths[kedgeName], report.paths[baselineName]) {
		if err := leavePageCache(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, system := range systems() {
		part(t, "curves/"+system, func(t *testing.T) { measureCurves(t, report, system) })
	}
	order := systems()
	for i := range report.Options.Runs {
		part(t, fmt.Sprint("run-", i+1), func(t *testing.T) {
			var runs []result
			for _, system := range order {
				part(t, system, func(t *testing.T) { runs = append(runs, measureStart(t, report, system)) })
			}
			if t.Failed() {
				return
			}
			measureRun(t, report, runs)
			for _, run := range runs {
				fmt.Println(run)
			}
			report.Runs = append(report.Runs, runs...)
		})
		slices.Reverse(order)
	}
	part(t, "agent", func(t *testing.T) { measureAgent(t, report) })
	for _, system := range systems() {
		part(t, "small/"+system, func(t *testing.T) { measureSmall(t, report, system) })
		part(t, "slowdisk/"+system, func(t *testing.T) { measureSlowDisk(t, report, system) })
	}
	report.addAgents()
	report.addInstalled()
	fmt.Print(report.Table())
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	out := filepath.Join(report.repository, filepath.Dir(resultFile))
	if len(report.Curves) == len(systems()) {
		if err := report.writeCurves(out); err != nil {
			t.Fatal(err)
		}
	}
	if chosen < parts {
		return // -run chose some: the last whole result stays
	}
	if err := writeJSON(filepath.Join(report.repository, resultFile), report); err != nil {
		t.Fatal(err)
	}
}

// startReport returns an empty report with the settings of the environment.
func startReport(t *testing.T) *report {
	t.Helper()
	options, err := readOptions()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newReport(repository, options)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
