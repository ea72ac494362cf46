package bench

import (
	"slices"
	"strings"
	"testing"
)

func TestNodesCounts(t *testing.T) {
	for nodes, want := range map[int][]int{50: {0, 25, 50}, 2: {0, 1, 2}} {
		if got := (nodesOptions{Nodes: nodes}).Counts(); !slices.Equal(got, want) {
			t.Errorf("%d: got %v, want %v", nodes, got, want)
		}
	}
}

func TestNodesTable(t *testing.T) {
	step := func(agents int, joining, anonymous, cpu float64) nodesStep {
		return nodesStep{Agents: agents, Joining: joining, Idle: nodesIdle{Anonymous: anonymous * mebibyte, CPU: cpu}}
	}
	report := nodesReport{Steps: []nodesStep{step(0, 0, 200, 2), step(25, 25, 225, 3), step(50, 50, 300, 3.5)}}
	table := report.Table()
	for _, want := range [][]string{
		{"agents", "0", "25", "50", "per", "agent"},
		{"seconds", "till", "all", "are", "Ready", "0.00", "25.0", "75.0", "1.500", "2.00"},
		{"anonymous,", "MiB", "200.0", "225.0", "300.0", "2.000", "3.00"},
		{"CPU,", "%", "of", "a", "core", "2.00", "3.00", "3.50", "0.030", "0.50"},
	} {
		if !slices.ContainsFunc(strings.Split(table, "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) >= len(want) && slices.Equal(fields[:len(want)], want)
		}) {
			t.Errorf("the table has no line %q:\n%s", want, table)
		}
	}
}
