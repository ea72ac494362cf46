package bench

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Names of values that are measured once, not in each run.
const (
	agentPSS        = "agent PSS"
	agentAnonymous  = "agent anonymous"
	perPod          = "memory per pod"
	perPodAnonymous = "anonymous per pod"
	podRate         = "pods a second"
	onePod          = "seconds of one pod"
	endSeen         = "seconds until an end is seen"
	requests        = "requests a second"
	latency99       = "watch latency p99"
	executables     = "executables"
	downloadXZ      = "download xz"
	downloadGzip    = "download gzip"
	installed       = "installed"

	smallMemory = "256 MiB around it, 5 pods"
	slowDisk    = "a disk of 1 MB/s, 20 syncs a second"
	stood       = "works"
	failed      = "fails"

	megabyte = 1e6
)

// row is a row of the table.
type row struct {
	name  string
	scale float64
	// value returns the value of a run, of which the table has the median. once names a value that is
	// measured once.
	value func(result) float64
	once  string
	// most and ratio are upper targets, and least is a lower target of a ratio. 0 means none.
	most, ratio, least float64
}

// rows returns the table's rows in order, with the project's targets.
func rows() []row {
	return []row{
		{name: "PSS of all but the pod, MiB", scale: mebibyte, value: func(r result) float64 { return r.PSS }, most: 260, ratio: 0.38},
		{name: "anonymous, MiB", scale: mebibyte, value: func(r result) float64 { return r.Anonymous }, most: 110, ratio: 1.0 / 3},
		{name: "· shims' PSS, MiB", scale: mebibyte, value: func(r result) float64 { return r.ShimsPSS }},
		{name: "· shims' anonymous, MiB", scale: mebibyte, value: func(r result) float64 { return r.ShimsAnonymous }},
		{name: "· tmpfs and memfd, MiB", scale: mebibyte, value: func(r result) float64 { return r.Files }},
		{name: "memory cgroup's count, MiB", scale: mebibyte, value: func(r result) float64 { return r.Cgroup }},
		{name: "agent alone: PSS, MiB", scale: mebibyte, once: agentPSS},
		{name: "agent alone: anonymous, MiB", scale: mebibyte, once: agentAnonymous, most: 50},
		{name: "cold start to /readyz, s", scale: 1, value: func(r result) float64 { return r.Start.Readyz }},
		{name: "cold start to node Ready, s", scale: 1, value: func(r result) float64 { return r.Start.NodeReady }, most: 2.5},
		{name: "cold start to first pod Ready, s", scale: 1, value: func(r result) float64 { return r.Start.PodReady }, most: 4},
		{name: "warm start to /readyz, s", scale: 1, value: func(r result) float64 { return r.Warm }, most: 1.5},
		{name: "CPU, idle, % of a core", scale: 1, value: func(r result) float64 { return r.CPU }, most: 1.2, ratio: 0.25},
		{name: "· shims' CPU, % of a core", scale: 1, value: func(r result) float64 { return r.ShimsCPU }},
		{name: "written, idle, MiB an hour", scale: mebibyte, value: func(r result) float64 { return r.Written }, most: 1, ratio: 1.0 / 70},
		{name: "written until idle, MiB", scale: mebibyte, value: func(r result) float64 { return r.WrittenBefore }},
		{name: "per further pod: PSS, MiB", scale: mebibyte, once: perPod, most: 8},
		{name: "per further pod: anonymous, MiB", scale: mebibyte, once: perPodAnonymous},
		{name: "pods started a second, of 30", scale: 1, once: podRate, least: 2.5},
		{name: "one pod, created to Ready, s", scale: 1, once: onePod, most: 0.25},
		{name: "end of a container to its status, s", scale: 1, once: endSeen, most: 0.05},
		{name: "API requests a second", scale: 1, once: requests, least: 1},
		{name: "watch latency p99, ms", scale: 1e-3, once: latency99, ratio: 1},
		{name: "executables, MB", scale: megabyte, once: executables, most: 210},
		{name: "download (xz -9), MB", scale: megabyte, once: downloadXZ, most: 60},
		{name: "download (gzip), MB", scale: megabyte, once: downloadGzip},
		{name: "installed and unpacked, MB", scale: megabyte, once: installed, most: 300},
	}
}

// set records a value that is measured once.
func (r *report) set(name, system string, value float64) {
	if r.Once[name] == nil {
		r.Once[name] = map[string]float64{}
	}
	r.Once[name][system] = value
}

// addInstalled adds the sizes on disks: the executables, and what each system has written until it
// was idle, including its database and logs.
func (r *report) addInstalled() {
	for _, system := range systems() {
		used := r.value(system, row{scale: 1, value: func(r result) float64 { return r.Used }})
		if !math.IsNaN(used) {
			r.set(installed, system, used+r.Once[executables][system])
		}
	}
}

// value returns a system's value in a row, or NaN if it was not measured.
func (r *report) value(system string, row row) float64 {
	if row.once != "" {
		value, ok := r.Once[row.once][system]
		if !ok {
			return math.NaN()
		}
		return value / row.scale
	}
	var values []float64
	for _, run := range r.Runs {
		if run.System == system {
			values = append(values, row.value(run)/row.scale)
		}
	}
	return median(values)
}

// target describes the target of a row.
func (r row) target() string {
	var all []string
	if r.most > 0 {
		all = append(all, fmt.Sprintf("≤ %g", r.most))
	}
	if r.ratio > 0 {
		all = append(all, fmt.Sprintf("ratio ≤ %.3g", r.ratio))
	}
	if r.least > 0 {
		all = append(all, fmt.Sprintf("ratio ≥ %.3g", r.least))
	}
	return strings.Join(all, ", ")
}

// verdict says whether a row reached its target and, if one of two was missed, which one. It
// returns "" if there is no target or no value.
func (r row) verdict(ours, theirs float64) string {
	quotient := ours / theirs
	if r.target() == "" || math.IsNaN(ours) || math.IsNaN(quotient) && r.most == 0 {
		return ""
	}
	absolute := r.most == 0 || ours <= r.most
	relative := (r.ratio == 0 || !(quotient > r.ratio)) && (r.least == 0 || !(quotient < r.least))
	switch {
	case absolute && relative:
		return "met"
	case !absolute && relative && r.ratio > 0 && !math.IsNaN(quotient):
		return "NOT MET, the ratio is"
	case absolute && r.most > 0:
		return "NOT MET, the figure is"
	default:
		return "NOT MET"
	}
}

// Table returns the figures, their ratios and targets as text.
func (r *report) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%supstream: %s\n", r.heading(), strings.Join(r.Versions, ", "))
	fmt.Fprintf(&text, "starts one at a time, median of %d; idle figures of both side by side with one pod each, over %s, %s after it was Ready; an hour's writes are those of %s, times %.3g\n\n",
		r.Options.Runs, r.Options.Idle, r.Options.Settle, r.Options.Idle, time.Hour.Minutes()/r.Options.Idle.Minutes())
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\t%8s\t%8s\t%6s\ttarget\t\n", kedgeName, baselineName, "ratio")
	for _, row := range rows() {
		ours, theirs := r.value(kedgeName, row), r.value(baselineName, row)
		if math.IsNaN(ours) && math.IsNaN(theirs) {
			continue
		}
		fmt.Fprintf(table, "%s\t%8s\t%8s\t%6s\t%s\t%s\n", row.name, number(ours), number(theirs), ratio(ours, theirs), row.target(), row.verdict(ours, theirs))
	}
	var reasons []string
	for _, name := range []string{smallMemory, slowDisk} {
		outcome := r.Outcomes[name]
		if len(outcome) == 0 {
			continue
		}
		words := map[string]string{}
		for system, said := range outcome {
			word, reason, _ := strings.Cut(said, ": ")
			words[system] = word
			if reason != "" {
				reasons = append(reasons, fmt.Sprintf("%s, %s %s: %s", name, system, word, strings.ReplaceAll(reason, "\n", "; ")))
			}
		}
		verdict := ""
		switch words[kedgeName] {
		case stood:
			verdict = "met"
		case failed:
			verdict = "NOT MET"
		}
		fmt.Fprintf(table, "%s\t%8s\t%8s\t\t%s\t%s\n", name, words[kedgeName], words[baselineName], stood, verdict)
	}
	table.Flush()
	slices.Sort(reasons)
	for _, reason := range reasons {
		fmt.Fprintf(&text, "\n%s\n", reason)
	}
	return text.String()
}

// String describes the results of a run, in a line and a line for each program.
func (r result) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s:", r.System)
	for _, row := range rows() {
		if row.value != nil {
			fmt.Fprintf(&text, " %s %s;", strings.TrimPrefix(row.name, "· "), number(row.value(r)/row.scale))
		}
	}
	text.WriteString("\n")
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "program\tPSS, MiB\tanonymous, MiB\tCPU since start, s\tmade dirty since start, KiB\t\n")
	names := slices.SortedFunc(maps.Keys(r.Programs), func(a, b string) int {
		return int(r.Programs[b].PSS - r.Programs[a].PSS)
	})
	for _, name := range names {
		u := r.Programs[name]
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.2f\t%.0f\t\n", name, u.PSS/mebibyte, u.Anonymous/mebibyte, u.CPU, u.Written/1024)
	}
	table.Flush()
	return text.String()
}

// number formats a value with as many digits as are meaningful.
func number(value float64) string {
	switch {
	case math.IsNaN(value):
		return "-"
	case value < 10:
		return fmt.Sprintf("%.2f", value)
	default:
		return fmt.Sprintf("%.1f", value)
	}
}

func ratio(ours, theirs float64) string {
	if theirs == 0 || math.IsNaN(ours/theirs) {
		return "-"
	}
	if ours/theirs < 0.1 {
		return fmt.Sprintf("%.3f", ours/theirs)
	}
	return fmt.Sprintf("%.2f", ours/theirs)
}
