// Package conformance runs upstream's conformance tests against the real kedge,
// on hosts made by tests/harness. `make conformance` and
// `make conformance-quick` build what it needs and call it: see README.md.
package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// state is how a test ended.
type state string

const (
	passed  state = "passed"
	failed  state = "failed"
	skipped state = "skipped"
)

// outcome is how one test ended, at its first and only attempt.
type outcome struct {
	Name     string
	State    state
	Duration time.Duration
	Message  string
}

// area is the special interest group that owns the test, or what its name begins with.
func (o outcome) area() string {
	if owned, ok := strings.CutPrefix(o.Name, "["); ok {
		if area, _, ok := strings.Cut(owned, "]"); ok {
			return area
		}
	} else if area, _, ok := strings.Cut(o.Name, " ["); ok {
		return area
	}
	return "other"
}

// summary is the first line of the message.
func (o outcome) summary() string {
	line, _, _ := strings.Cut(strings.TrimSpace(o.Message), "\n")
	return line
}

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

// readReport reads ginkgo's JSON report: github.com/onsi/ginkgo/v2/types,
// Report. Tests that the selection left out are not in the result.
//
//upstream:relies-on github.com/onsi/ginkgo/v2/types/types.go Report SpecReport
func readReport(path string) ([]outcome, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			RunTime                           time.Duration
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var outcomes []outcome
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			o := outcome{
				Name:     strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " "),
				State:    state(spec.State),
				Duration: spec.RunTime,
				Message:  spec.Failure.Message,
			}
			// Other labels follow, such as [Serial].
			o.Name, _, _ = strings.Cut(o.Name, " [Conformance]")
			switch o.State {
			case passed, skipped:
				// What the selection leaves out is skipped without a reason.
				if spec.LeafNodeType != "It" || (o.State == skipped && o.Message == "") {
					continue
				}
			case "pending":
				continue
			default: // failed, panicked, interrupted, aborted, timedout
				o.State = failed
				if o.Name == "" {
					o.Name = spec.LeafNodeType
				}
			}
			outcomes = append(outcomes, o)
		}
	}
	slices.SortStableFunc(outcomes, func(a, b outcome) int { return cmp.Compare(a.Name, b.Name) })
	return outcomes, nil
}

// writeTables writes results.tsv and results.md into a folder.
func writeTables(dir string, facts runFacts, outcomes []outcome) error {
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
func writeTSV(w io.Writer, outcomes []outcome) {
	for _, o := range outcomes {
		fmt.Fprintf(w, "%s\t%.0f\t%s\n", o.State, o.Duration.Seconds(), o.Name)
	}
}

// tally is the outcomes of an area.
type tally struct {
	count    map[state]int
	duration time.Duration
}

func (t *tally) add(o outcome) {
	if t.count == nil {
		t.count = map[state]int{}
	}
	t.count[o.State]++
	t.duration += o.Duration
}

func (t *tally) row(area string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %.1f |\n",
		area, t.count[passed], t.count[failed], t.count[skipped], t.duration.Minutes())
}

// writeMarkdown writes the facts, a table of the areas, what did not pass, and
// a table of all tests.
func writeMarkdown(w io.Writer, facts runFacts, outcomes []outcome) {
	all, areas := &tally{}, map[string]*tally{}
	for _, o := range outcomes {
		if areas[o.area()] == nil {
			areas[o.area()] = &tally{}
		}
		areas[o.area()].add(o)
		all.add(o)
	}
	fmt.Fprintf(w, "# Conformance of kedge %s\n\n", facts.Version)
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped in %.0f minutes, at the first attempt.\n\n",
		all.count[passed], all.count[failed], all.count[skipped], facts.Duration.Minutes())
	fmt.Fprintf(w, "- commit %s, %s\n- tests: %s\n- nodes: %d, tests at a time: %s\n- machine: %s\n\n",
		facts.Commit, facts.Started.Format("2 January 2006"), facts.Selection, facts.Nodes, facts.Processes, facts.Machine)

	fmt.Fprint(w, "| area | passed | failed | skipped | minutes, added up |\n| --- | --: | --: | --: | --: |\n")
	for _, area := range slices.Sorted(maps.Keys(areas)) {
		fmt.Fprint(w, areas[area].row(area))
	}
	fmt.Fprint(w, all.row("all"))

	for _, s := range []state{failed, skipped} {
		if all.count[s] == 0 {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n", strings.ToUpper(string(s[:1]))+string(s[1:]))
		for _, o := range outcomes {
			if o.State == s {
				fmt.Fprintf(w, "- %s: %s\n", o.Name, o.summary())
			}
		}
	}

	fmt.Fprint(w, "\n## All\n\n| test | result | seconds |\n| --- | --- | --: |\n")
	for _, o := range outcomes {
		fmt.Fprintf(w, "| %s | %s | %.0f |\n", strings.ReplaceAll(o.Name, "|", `\|`), o.State, o.Duration.Seconds())
	}
}
