// Package ginkgo reads the reports of upstream's suites, which use ginkgo.
package ginkgo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// State is how a test ended.
type State string

const (
	Passed  State = "passed"
	Failed  State = "failed"
	Skipped State = "skipped"
)

// Outcome is how one test ended, at its first and only attempt.
type Outcome struct {
	Name     string
	State    State
	Duration time.Duration
	Message  string
}

// Area is the special interest group that owns the test, or what its name begins with.
func (o Outcome) Area() string {
	if owned, ok := strings.CutPrefix(o.Name, "["); ok {
		if area, _, ok := strings.Cut(owned, "]"); ok {
			return area
		}
	} else if area, _, ok := strings.Cut(o.Name, " ["); ok {
		return area
	}
	return "other"
}

// Summary is the first line of the message.
func (o Outcome) Summary() string {
	line, _, _ := strings.Cut(strings.TrimSpace(o.Message), "\n")
	return line
}

// Read reads ginkgo's JSON report: github.com/onsi/ginkgo/v2/types,
// Report. Tests that the selection left out are not in the result.
//
//upstream:relies-on github.com/onsi/ginkgo/v2/types/types.go Report SpecReport
func Read(path string) ([]Outcome, error) {
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
	var outcomes []Outcome
	for _, report := range reports {
		for _, spec := range report.SpecReports {
			o := Outcome{
				Name:     strings.Join(append(spec.ContainerHierarchyTexts, spec.LeafNodeText), " "),
				State:    State(spec.State),
				Duration: spec.RunTime,
				Message:  spec.Failure.Message,
			}
			// Other labels follow, such as [Serial].
			o.Name, _, _ = strings.Cut(o.Name, " [Conformance]")
			switch o.State {
			case Passed, Skipped:
				// ginkgo also calls a test skipped if nobody has selected it. Then the message is empty.
				if spec.LeafNodeType != "It" || (o.State == Skipped && o.Message == "") {
					continue
				}
			case "pending":
				continue
			default: // failed, panicked, interrupted, aborted, timedout
				o.State = Failed
				if o.Name == "" {
					o.Name = spec.LeafNodeType
				}
			}
			outcomes = append(outcomes, o)
		}
	}
	slices.SortStableFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Name, b.Name) })
	return outcomes, nil
}
