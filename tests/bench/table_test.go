package bench

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	none := math.NaN()
	for _, test := range []struct {
		row          row
		ours, theirs float64
		want         string
	}{
		{row{}, 1, 1, ""},
		{row{most: 260, ratio: 0.38}, 250, 700, "met"},
		{row{most: 260, ratio: 0.38}, 250, 500, "NOT MET, the figure is"},
		{row{most: 260, ratio: 0.38}, 270, 800, "NOT MET, the ratio is"},
		{row{most: 260, ratio: 0.38}, 270, 500, "NOT MET"},
		{row{most: 260, ratio: 0.38}, 270, none, "NOT MET"},
		{row{most: 8}, 7, none, "met"},
		{row{most: 8}, 9, none, "NOT MET"},
		{row{most: 8}, none, 9, ""},
		{row{least: 1}, 2, 1, "met"},
		{row{least: 1}, 1, 2, "NOT MET"},
		{row{least: 1}, 1, none, ""},
		{row{ratio: 1}, 1, 2, "met"},
		{row{ratio: 1}, 2, 1, "NOT MET"},
	} {
		if got := test.row.verdict(test.ours, test.theirs); got != test.want {
			t.Errorf("%s with %v and %v is %q, want %q", test.row.target(), test.ours, test.theirs, got, test.want)
		}
	}
}

func TestTable(t *testing.T) {
	r := &report{Options: options{Runs: 1, Idle: time.Minute}, Once: map[string]map[string]float64{}, Outcomes: map[string]map[string]string{}}
	r.Runs = []result{{System: kedgeName, atRest: atRest{PSS: 200 * mebibyte}}, {System: baselineName, atRest: atRest{PSS: 800 * mebibyte}}}
	r.set(podRate, kedgeName, 6)
	r.set(podRate, baselineName, 2)
	r.outcome(smallMemory, kedgeName, errors.New("it ended"))
	r.outcome(smallMemory, baselineName, nil)
	lines := map[string]string{}
	for line := range strings.Lines(r.Table()) {
		name, rest, _ := strings.Cut(line, "  ")
		lines[name] = strings.Join(strings.Fields(rest), " ")
	}
	for name, want := range map[string]string{
		"PSS of all but the pod, MiB":  "200.0 800.0 0.25 ≤ 260, ratio ≤ 0.38 met",
		"pods started a second, of 30": "6.00 2.00 3.00 ratio ≥ 2.5 met",
		smallMemory:                    "fails works works NOT MET",
	} {
		if lines[name] != want {
			t.Errorf("the line of %s is %q, want %q", name, lines[name], want)
		}
	}
	if text := r.Table(); !strings.Contains(text, "kedge fails: it ended") {
		t.Errorf("the table does not say why something failed:\n%s", text)
	}
}
