package bench

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

const mebibyte = 1 << 20

// report is everything one benchmark found.
type report struct {
	Time       time.Time `json:"time"`
	Commit     string    `json:"commit"`
	Kubernetes string    `json:"kubernetes"`
	Machine    string    `json:"machine"`
	Versions   []string  `json:"versions"`
	Options    options   `json:"options"`
	// Executables is the bytes of each system's own executables.
	Executables map[string]float64 `json:"executables"`
	Runs        []result           `json:"results"`
}

func newReport(repository string, o options) (*report, error) {
	r := &report{Time: time.Now().UTC().Truncate(time.Second), Options: o, Executables: map[string]float64{}}
	commit, err := exec.Command("git", "-C", repository, "describe", "--always", "--dirty", "--abbrev=12").Output()
	r.Commit = strings.TrimSpace(string(commit))
	if err != nil {
		r.Commit = "unknown"
	}
	binaries, err := filepath.Glob(filepath.Join(repository, binariesDir, "*"))
	if err != nil {
		return nil, err
	}
	for _, binary := range binaries {
		version, err := moduleVersion(binary)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(binary)
		r.Versions = append(r.Versions, name+" "+version)
		switch name {
		case "kube-apiserver":
			r.Kubernetes = version
		case "kubeadm":
			continue // it only sets up
		}
		if err := r.addExecutable(baselineName, binary); err != nil {
			return nil, err
		}
	}
	if r.Kubernetes == "" {
		return nil, fmt.Errorf("find the baseline's executables in %s: none there: run make bench", binariesDir)
	}
	if err := r.addExecutable(kedgeName, filepath.Join(repository, "bin/kedge")); err != nil {
		return nil, err
	}
	r.Machine, err = describeMachine()
	return r, err
}

func (r *report) addExecutable(system, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	r.Executables[system] += float64(info.Size())
	return nil
}

// moduleVersion returns the version of the module that a Go executable's main
// package is from, or else of the module that has the executable's name.
func moduleVersion(path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read version: %w", err)
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v, nil
	}
	name := strings.TrimSuffix(filepath.Base(path), "d")
	for _, module := range info.Deps {
		if strings.HasSuffix(module.Path, "/"+name) {
			return module.Version, nil
		}
	}
	return "", fmt.Errorf("read version: %s is of no known module", path)
}

// describeMachine says what the numbers depend on.
func describeMachine() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	memory, err := readFields("/proc/meminfo")
	if err != nil {
		return "", err
	}
	cpu, err := readFields("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	model := runtime.GOARCH
	for field, value := range cpu {
		if strings.TrimSpace(field) == "model name" {
			model = value
		}
	}
	return fmt.Sprintf("%s, %d cores, %.1f GiB memory, Linux %s, %s", model, runtime.NumCPU(),
		kibibytes(memory["MemTotal"])/mebibyte/1024, unix.ByteSliceToString(name.Release[:]), runtime.Version()), nil
}

// row is a line of the table.
type row struct {
	name  string
	scale float64
	value func(result) float64
}

// rows are the table's lines, in order.
func rows() []row {
	return []row{
		{"seconds to /readyz", 1, func(r result) float64 { return r.Start.Readyz }},
		{"seconds to node Ready", 1, func(r result) float64 { return r.Start.NodeReady }},
		{"seconds to first pod Ready", 1, func(r result) float64 { return r.Start.PodReady }},
		{"written till idle, MiB", mebibyte, func(r result) float64 { return r.WrittenBefore }},
		{"PSS, MiB", mebibyte, func(r result) float64 { return r.PSS }},
		{"anonymous, MiB", mebibyte, func(r result) float64 { return r.Anonymous }},
		{"shim PSS, MiB", mebibyte, func(r result) float64 { return r.ShimsPSS }},
		{"shim anonymous, MiB", mebibyte, func(r result) float64 { return r.ShimsAnonymous }},
		{"CPU, % of a core", 1, func(r result) float64 { return r.CPU }},
		{"shim CPU, % of a core", 1, func(r result) float64 { return r.ShimsCPU }},
		{"written, KiB a minute", 1024, func(r result) float64 { return r.Written }},
		{"whole disk, KiB a minute", 1024, func(r result) float64 { return r.DiskWritten }},
	}
}

// Table returns the medians and their ratios as text.
func (r *report) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\ncommit %s, %s\nupstream: %s\n", r.Machine, r.Commit, r.Time.Format(time.RFC3339), strings.Join(r.Versions, ", "))
	fmt.Fprintf(&text, "cold starts in turns, median of %d; idle figures with one pod, over %s, %s after it was Ready\n\n", r.Options.Runs, r.Options.Idle, r.Options.Settle)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%s\t%s\t%s\tratio\t\n", "", kedgeName, baselineName)
	for _, row := range rows() {
		ours, theirs := r.median(kedgeName, row), r.median(baselineName, row)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t\n", row.name, number(ours), number(theirs), ratio(ours, theirs))
	}
	ours, theirs := r.Executables[kedgeName]/mebibyte, r.Executables[baselineName]/mebibyte
	fmt.Fprintf(table, "executables, MiB\t%s\t%s\t%s\t\n", number(ours), number(theirs), ratio(ours, theirs))
	table.Flush()
	return text.String()
}

// number writes no more digits than mean something.
func number(value float64) string {
	if value < 10 {
		return fmt.Sprintf("%.2f", value)
	}
	return fmt.Sprintf("%.1f", value)
}

func ratio(ours, theirs float64) string {
	if theirs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ours/theirs)
}

func (r *report) median(system string, row row) float64 {
	var values []float64
	for _, run := range r.Runs {
		if run.System == system {
			values = append(values, row.value(run)/row.scale)
		}
	}
	return median(values)
}

// median returns the middle of values, or the mean of the middle two, or NaN.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// String says what one run found, in a line and one for each program.
func (r result) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s:", r.System)
	for _, row := range rows() {
		fmt.Fprintf(&text, " %s %s;", row.name, number(row.value(r)/row.scale))
	}
	text.WriteString("\n")
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "program\tPSS, MiB\tanonymous, MiB\tCPU since start, s\twritten since start, KiB\t\n")
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

func (r *report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
