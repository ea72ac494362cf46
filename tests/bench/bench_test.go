package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestBench measures kedge and the baseline in turns. It fails only if one of
// them does not come up.
func TestBench(t *testing.T) {
	harness.Require(t)
	options, err := readOptions()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	report, err := newReport(repository, options)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(report.Machine)
	systems := []string{kedgeName, baselineName}
	for _, system := range systems {
		t.Run(fmt.Sprintf("warm-up/%s", system), func(t *testing.T) {
			measure(t, repository, report.Kubernetes, system, options, false)
		})
	}
	for i := range options.Runs {
		for _, system := range systems {
			t.Run(fmt.Sprintf("run-%d/%s", i+1, system), func(t *testing.T) {
				run := measure(t, repository, report.Kubernetes, system, options, true)
				fmt.Println(run)
				report.Runs = append(report.Runs, run)
			})
		}
	}
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	if len(report.Runs) < options.Runs*len(systems) {
		return // -run chose some
	}
	fmt.Print(report.Table())
	if err := report.write(filepath.Join(repository, resultFile)); err != nil {
		t.Fatal(err)
	}
}

// measure starts a system on a new host, and measures it also when idle if
// idle says so.
func measure(t *testing.T, repository, kubernetes, system string, options options, idle bool) result {
	h := harness.NewNetwork(t).NewHost(t, "bench")
	// What others wrote before shall not be waited for now.
	unix.Sync()
	ctx, fail := context.WithCancelCause(t.Context())
	defer fail(nil)
	var started time.Time
	var kubeconfig string
	switch system {
	case kedgeName:
		started, kubeconfig = time.Now(), kedgeKubeconfig
		h.StartServer(t)
	case baselineName:
		helpers, err := helpersDir(repository)
		if err != nil {
			t.Fatal(err)
		}
		b := newBaseline(t, h, fail, repository, helpers, kubernetes)
		started, kubeconfig = time.Now(), b.kubeconfig()
		b.start()
	}
	times, err := observe(ctx, h, kubeconfig, started)
	if err != nil {
		t.Fatal(err)
	}
	run := result{System: system, Start: times}
	if !idle {
		return run
	}
	time.Sleep(options.Settle)
	if err := run.measureIdle(h, options.Idle); err != nil {
		t.Fatal(err)
	}
	return run
}
