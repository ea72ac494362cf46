package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestParts measures what the optional parts of a server use while nobody uses them.
func TestParts(t *testing.T) { comparePair(t, partsPair()) }

// comparePair watches a server of each way at the same time, as often as BENCH_RUNS says.
func comparePair(t *testing.T, p pair) {
	t.Helper()
	harness.Require(t)
	report := startReport(t)
	ways := []string{p.less, p.more}
	results := map[string][]result{}
	for round := range report.Options.Runs {
		t.Run(fmt.Sprint("run-", round+1), func(t *testing.T) { measurePair(t, report, p, ways, results) })
		slices.Reverse(ways)
	}
	if t.Failed() {
		t.Fatal("not everything could be measured")
	}
	parts := &partsReport{origin: report.origin, pair: p, Options: report.Options, Results: results}
	fmt.Print(parts.Table())
	if err := writeJSON(filepath.Join(report.repository, p.file), parts); err != nil {
		t.Fatal(err)
	}
}

// measurePair adds a result of each way to start a server.
func measurePair(t *testing.T, report *report, p pair, ways []string, results map[string][]result) {
	installations := make([]*installation, len(ways))
	for n, way := range ways {
		useCopy(t)
		i := newInstallation(t, report, kedgeName, 0)
		i.args = p.args[way]
		_, err := observe(i.ctx, i.host, i.kubeconfig, i.start(t))
		if err == nil && way == p.more && p.begin != nil {
			err = p.begin(i)
		}
		if err != nil {
			t.Fatal(err)
		}
		installations[n] = i
	}
	time.Sleep(report.Options.Settle)
	runs := make([]result, len(ways))
	measured := make(chan error)
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	if p.writes > 0 {
		for _, i := range installations {
			writers.Go(func() {
				if err := writeSteadily(writing, i.server.Client(), p.writes); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Second) // the backup writes its first files
	}
	if p.bucket != nil {
		p.bucket.count(true)
		defer p.bucket.count(false)
	}
	for n, i := range installations {
		go func() { measured <- runs[n].measureIdle(i.ctx, i, report.Options.Idle) }()
	}
	for range ways {
		if err := <-measured; err != nil {
			t.Error(err)
		}
	}
	stop()
	writers.Wait()
	for n, way := range ways {
		results[way] = append(results[way], runs[n])
		fmt.Printf("%s: PSS %.1f MiB, anonymous %.1f MiB, CPU %.2f %%\n", way, runs[n].PSS/mebibyte, runs[n].Anonymous/mebibyte, runs[n].CPU)
	}
}
