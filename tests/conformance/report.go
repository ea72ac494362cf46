// Package conformance runs upstream's conformance tests against the real kedge,
// on hosts made by tests/harness. `make conformance` and
// `make conformance-quick` build what it needs and call it: see README.md.
package conformance

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/tests/harness/ginkgo"
)

// runFacts is what is worth knowing about a run.
type runFacts struct {
	Version, Commit string
	Started         time.Time
	Duration        time.Duration
	Nodes           int
	Machine         string
	Processes       string
	Selection       string
}

// writeTables writes results.tsv and results.md into a folder.
func writeTables(dir string, facts runFacts, outcomes []ginkgo.Outcome) error {
	for name, write := range map[string]func(io.Writer){
		"results.tsv": func(w io.Writer) { writeTSV(w, outcomes) },
		"results.md":  func(w io.Writer) { writeMarkdown(w, facts, outcomes) },
	} {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		write(file)
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// writeTSV writes state, seconds and name of each test.
func writeTSV(w io.Writer, outcomes []ginkgo.Outcome) {
	for _, o := range outcomes {
		fmt.Fprintf(w, "%s\t%.0f\t%s\n", o.State, o.Duration.Seconds(), o.Name)
	}
}

// tally is the outcomes of an area.
type tally struct {
	count    map[ginkgo.State]int
	duration time.Duration
}

func (t *tally) add(o ginkgo.Outcome) {
	if t.count == nil {
		t.count = map[ginkgo.State]int{}
	}
	t.count[o.State]++
	t.duration += o.Duration
}

func (t *tally) row(area string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %.1f |\n",
		area, t.count[ginkgo.Passed], t.count[ginkgo.Failed], t.count[ginkgo.Skipped], t.duration.Minutes())
}

// writeMarkdown writes the facts, a table of the areas, what did not pass, and
// a table of all tests.
func writeMarkdown(w io.Writer, facts runFacts, outcomes []ginkgo.Outcome) {
	all, areas := &tally{}, map[string]*tally{}
	for _, o := range outcomes {
		if areas[o.Area()] == nil {
			areas[o.Area()] = &tally{}
		}
		areas[o.Area()].add(o)
		all.add(o)
	}
	fmt.Fprintf(w, "# Conformance of kedge %s\n\n", facts.Version)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped in %.0f minutes, at the first attempt.\n\n",
		all.count[ginkgo.Passed], all.count[ginkgo.Failed], all.count[ginkgo.Skipped], facts.Duration.Minutes())
	fmt.Fprintf(w, "- commit %s, %s\n- tests: %s\n- nodes: %d, tests at a time: %s\n- machine: %s\n\n",
		facts.Commit, facts.Started.Format("2 January 2006"), facts.Selection, facts.Nodes, facts.Processes, facts.Machine)

	fmt.Fprint(w, "| area | passed | failed | skipped | minutes, added up |\n| --- | --: | --: | --: | --: |\n")
	for _, area := range slices.Sorted(maps.Keys(areas)) {
		fmt.Fprint(w, areas[area].row(area))
	}
	fmt.Fprint(w, all.row("all"))

	for _, s := range []ginkgo.State{ginkgo.Failed, ginkgo.Skipped} {
		if all.count[s] == 0 {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n", strings.ToUpper(string(s[:1]))+string(s[1:]))
		for _, o := range outcomes {
			if o.State == s {
				fmt.Fprintf(w, "- %s: %s\n", o.Name, o.Summary())
			}
		}
	}

	fmt.Fprint(w, "\n## All\n\n| test | result | seconds |\n| --- | --- | --: |\n")
	for _, o := range outcomes {
		fmt.Fprintf(w, "| %s | %s | %.0f |\n", strings.ReplaceAll(o.Name, "|", `\|`), o.State, o.Duration.Seconds())
	}
}
