package bench

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const mebibyte = 1 << 20

// origin says when, where and from what a result was made.
type origin struct {
	Time    time.Time `json:"time"`
	Commit  string    `json:"commit"`
	Machine string    `json:"machine"`
}

func newOrigin(repository string) (origin, error) {
	machine, err := describeMachine()
	return origin{time.Now().UTC().Truncate(time.Second), describeCommit(repository), machine}, err
}

// heading returns the text above a table.
func (o origin) heading() string {
	return fmt.Sprintf("\n%s\ncommit %s, %s\n", o.Machine, o.Commit, o.Time.Format(time.RFC3339))
}

// figure is a row or a column of a table of results.
type figure[T any] struct {
	name  string
	scale float64
	value func(T) float64
}

// of returns the value of a result in the table's unit.
func (f figure[T]) of(result T) float64 { return f.value(result) / f.scale }

// compare writes a table of the medians of results by row, each with its ratio to the first row's
// value.
func compare[T any](w io.Writer, title string, rows []string, columns []figure[T], results map[string][]T) {
	fmt.Fprintf(w, "%s\t", title)
	for _, column := range columns {
		fmt.Fprintf(w, "%s\t\t", column.name)
	}
	fmt.Fprintln(w)
	of := func(row string, column figure[T]) float64 {
		var values []float64
		for _, result := range results[row] {
			values = append(values, column.of(result))
		}
		return median(values)
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t", row)
		for _, column := range columns {
			value := of(row, column)
			fmt.Fprintf(w, "%s\t%s\t", number(value), ratio(value, of(rows[0], column)))
		}
		fmt.Fprintln(w)
	}
}

// report has all results of one benchmark.
type report struct {
	origin
	Kubernetes string   `json:"kubernetes"`
	Versions   []string `json:"versions"`
	Options    options  `json:"options"`
	Runs       []result `json:"results"`
	// Once has values that are measured once, by name and system: see table.go.
	Once map[string]map[string]float64 `json:"once"`
	// Outcomes says how each system endured a hardship, by hardship and system.
	Outcomes map[string]map[string]string `json:"outcomes"`
	// Curves has the curves by system.
	Curves map[string]curves `json:"curves"`

	repository string
	// paths has each system's executables.
	paths map[string][]string
}

func newReport(repository string, o options) (*report, error) {
	origin, err := newOrigin(repository)
	if err != nil {
		return nil, err
	}
	r := &report{
		origin: origin, Options: o,
		Once: map[string]map[string]float64{}, Outcomes: map[string]map[string]string{}, Curves: map[string]curves{},
		repository: repository, paths: map[string][]string{},
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
		case "kubeadm", clientName:
			continue // kubeadm only sets up, and kubectl is the user's
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
	return r, nil
}

func describeCommit(repository string) string {
	commit, err := exec.Command("git", "-C", repository, "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(commit))
}

func (r *report) addExecutable(system, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	r.set(executables, system, r.Once[executables][system]+float64(info.Size()))
	r.paths[system] = append(r.paths[system], path)
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

// describeMachine describes the machine, on which the results depend.
func describeMachine() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	memory, err := proc.Meminfo()
	if err != nil {
		return "", fmt.Errorf("read size of memory: %w", err)
	}
	model := runtime.GOARCH
	// Not every architecture's names the model.
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
		model = cpus[0].ModelName
	}
	return fmt.Sprintf("%s, %d cores, %.1f GiB memory, Linux %s, %s", model, runtime.NumCPU(),
		float64(*memory.MemTotalBytes)/mebibyte/1024, unix.ByteSliceToString(name.Release[:]), runtime.Version()), nil
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
