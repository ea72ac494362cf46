// Package bench measures kedge and upstream's separate executables, which are built from the same
// modules and configured by kubeadm: see README.md. It is a test, so that it can use the hosts of
// tests/harness. `make bench` runs it.
package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	kedgeName    = "kedge"
	baselineName = "upstream"

	kedgeKubeconfig = "/etc/kedge/kedge.yaml"
	// Below the source tree.
	binariesDir = "build/bench/bin"
	resultFile  = "build/bench/result.json"
)

// options are settings that the environment can change.
type options struct {
	// Runs is the number of measured starts of each system: BENCH_RUNS.
	Runs int `json:"runs"`
	// Settle is the time from the first pod's readiness to the idle time: BENCH_SETTLE.
	Settle time.Duration `json:"settle"`
	// Idle is how long the idle system is watched: BENCH_IDLE.
	Idle time.Duration `json:"idle"`
}

func readOptions() (options, error) {
	o := options{Runs: 3, Settle: 30 * time.Second, Idle: time.Minute}
	var err error
	if text := os.Getenv("BENCH_RUNS"); text != "" {
		if o.Runs, err = strconv.Atoi(text); err != nil || o.Runs < 1 {
			return o, fmt.Errorf("BENCH_RUNS is %q, which is not a number of runs", text)
		}
	}
	return o, readDurations(map[string]*time.Duration{"BENCH_SETTLE": &o.Settle, "BENCH_IDLE": &o.Idle})
}

// readDurations sets the values that have a variable in the environment.
func readDurations(values map[string]*time.Duration) error {
	for name, value := range values {
		text := os.Getenv(name)
		if text == "" {
			continue
		}
		var err error
		if *value, err = time.ParseDuration(text); err != nil || *value <= 0 {
			return fmt.Errorf("%s is %q, which is not a time such as 60s", name, text)
		}
	}
	return nil
}

// helpersDir returns the folder with the helpers that kedge embeds: runc, its shim, the CNI plugins
// and nft. The baseline uses the same helpers.
func helpersDir(repository string) (string, error) {
	dir := filepath.Join(repository, "build", runtime.GOARCH, "bundle", "bin")
	if _, err := os.Stat(filepath.Join(dir, shimName)); err != nil {
		return "", fmt.Errorf("find helpers: %w: build them with make", err)
	}
	return dir, nil
}

// leavePageCache makes the kernel drop a file from its page cache, so that it is read again where
// it is used. A file that was just written or copied is cached in pieces of up to 2 MiB, which are
// mapped as a whole at their first use. Then all of an executable would seem to be in use.
func leavePageCache(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return err
	}
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop %s from the page cache: %w", path, err)
	}
	return nil
}
