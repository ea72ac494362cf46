// Package bench measures kedge beside upstream's separate executables, built
// from the same modules and configured by kubeadm: see README.md. It is a test
// so that it can use the hosts of tests/harness; `make bench` runs it.
package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	kedgeName    = "kedge"
	baselineName = "upstream"

	kedgeKubeconfig = "/etc/kedge/kedge.yaml"
	// Below the source tree.
	binariesDir = "build/bench/bin"
	resultFile  = "build/bench/result.json"
	// samples is how often memory is read in the idle time; it counts the median.
	samples = 5
)

// options are what the environment can change.
type options struct {
	// Runs is the number of measured starts of each system: BENCH_RUNS.
	Runs int `json:"runs"`
	// Settle is the time between the first pod's readiness and the idle time:
	// BENCH_SETTLE.
	Settle time.Duration `json:"settle"`
	// Idle is how long the system is then watched: BENCH_IDLE.
	Idle time.Duration `json:"idle"`
}

func readOptions() (options, error) {
	o := options{Runs: 3, Settle: time.Minute, Idle: time.Minute}
	var err error
	if text := os.Getenv("BENCH_RUNS"); text != "" {
		if o.Runs, err = strconv.Atoi(text); err != nil || o.Runs < 1 {
			return o, fmt.Errorf("BENCH_RUNS is %q, which is not a number of runs", text)
		}
	}
	for name, value := range map[string]*time.Duration{"BENCH_SETTLE": &o.Settle, "BENCH_IDLE": &o.Idle} {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		if *value, err = time.ParseDuration(text); err != nil || *value <= 0 {
			return o, fmt.Errorf("%s is %q, which is not a time such as 60s", name, text)
		}
	}
	return o, nil
}

// helpersDir is where the Makefile put the helpers that kedge embeds: runc, its
// shim, the CNI plugins and nft. The baseline uses the same ones.
func helpersDir(repository string) (string, error) {
	dir := filepath.Join(repository, "build", runtime.GOARCH, "bundle", "bin")
	if _, err := os.Stat(filepath.Join(dir, shimName)); err != nil {
		return "", fmt.Errorf("find helpers: %w: build them with make", err)
	}
	return dir, nil
}

// result is one start of one system. Memory is in bytes.
type result struct {
	System string     `json:"system"`
	Start  startTimes `json:"seconds"`
	// PSS and Anonymous are without the shims, and without the pod.
	PSS            float64 `json:"pss"`
	Anonymous      float64 `json:"anonymous"`
	ShimsPSS       float64 `json:"shimsPSS"`
	ShimsAnonymous float64 `json:"shimsAnonymous"`
	// CPU is percent of one core.
	CPU      float64 `json:"cpuPercent"`
	ShimsCPU float64 `json:"shimsCPUPercent"`
	// WrittenBefore is bytes, from the start until the idle time.
	WrittenBefore float64 `json:"writtenBefore"`
	// Written is bytes a minute; DiskWritten those of the machine's whole disk.
	Written     float64 `json:"writtenPerMinute"`
	DiskWritten float64 `json:"diskWrittenPerMinute"`
	// Programs has PSS and the rest, totals since their start, by program.
	Programs map[string]usage `json:"programs"`
}

// measureIdle watches the host for a time in which nobody asks it for anything.
func (r *result) measureIdle(h *harness.Host, idle time.Duration) error {
	all := make([]snapshot, samples)
	var began, ended time.Time
	for i := range all {
		if i > 0 {
			time.Sleep(idle / (samples - 1))
		}
		ended = time.Now()
		if i == 0 {
			began = ended
		}
		var err error
		if all[i], err = takeSnapshot(h); err != nil {
			return fmt.Errorf("read processes: %w", err)
		}
	}
	middle := func(of func(snapshot) float64) float64 {
		values := make([]float64, len(all))
		for i, s := range all {
			values[i] = of(s)
		}
		return median(values)
	}
	r.PSS = middle(func(s snapshot) float64 { return s.Installation.PSS })
	r.Anonymous = middle(func(s snapshot) float64 { return s.Installation.Anonymous })
	r.ShimsPSS = middle(func(s snapshot) float64 { return s.Shims.PSS })
	r.ShimsAnonymous = middle(func(s snapshot) float64 { return s.Shims.Anonymous })

	first, last, took := all[0], all[samples-1], ended.Sub(began)
	r.CPU = 100 * (last.Installation.CPU - first.Installation.CPU) / took.Seconds()
	r.ShimsCPU = 100 * (last.Shims.CPU - first.Shims.CPU) / took.Seconds()
	r.WrittenBefore = first.Installation.Written
	r.Written = (last.Installation.Written - first.Installation.Written) / took.Minutes()
	r.DiskWritten = (last.DiskWritten - first.DiskWritten) / took.Minutes()
	r.Programs = last.Programs
	return nil
}
