package bench

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// throwAwayRuns is how often each kind of cluster is made.
const throwAwayRuns = 5

// throwAwayResult has the times of one `kedge run`, in seconds.
type throwAwayResult struct {
	// Start is from the command to the start of the user's command, and Gone is from the end of that until
	// nothing of the cluster is left.
	Start, Gone float64
}

// published are times of kind and k3d that others have published. README.md has the sources.
var published = map[string]string{
	"kind v0.12 until its API answers":  "12.5 s",
	"kind v0.14 until its API answers":  "17.1 s",
	"kind of 2020, on another machine":  "36.0 s",
	"k3d of 2020, on that same machine": "22.7 s",
}

// TestThrowAway measures `kedge run`: how soon the user's command starts, and how soon everything is gone. Upstream's
// executables are measured beside it: how soon their API answers, and their node is ready. It fails only if a cluster
// does not start.
func TestThrowAway(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	base, err := newReport(repository, options{})
	if err != nil {
		t.Fatal(err)
	}
	host := harness.NewNetwork(t).NewHost(t, "machine")
	kinds := []struct {
		name string
		args []string
	}{{"one node", nil}, {"three nodes", []string{"--nodes=3"}}, {"--api-only", []string{"--api-only"}}}
	results := map[string][]throwAwayResult{}
	var upstream []startTimes
	for i := range throwAwayRuns + 1 {
		for _, kind := range kinds {
			result, err := throwAway(t.Context(), host, kind.args)
			if err != nil {
				t.Fatalf("%s: %v", kind.name, err)
			}
			// The first run unpacks the helpers, and reads the executable from the disk.
			if i > 0 {
				results[kind.name] = append(results[kind.name], result)
			}
		}
		t.Run(baselineName, func(t *testing.T) {
			installation := newInstallation(t, base, baselineName, 0)
			times, err := observe(installation.ctx, installation.host, installation.kubeconfig, installation.start(t))
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				upstream = append(upstream, times)
			}
		})
		if t.Failed() {
			return
		}
	}
	fmt.Println("| cluster | command starts after | gone after |\n| --- | --: | --: |")
	for _, kind := range kinds {
		start := middle(results[kind.name], func(r throwAwayResult) float64 { return r.Start })
		gone := middle(results[kind.name], func(r throwAwayResult) float64 { return r.Gone })
		fmt.Printf("| %s | %.2f s | %.2f s |\n", kind.name, start, gone)
	}
	fmt.Printf("| upstream's executables until their API answers | %.2f s | |\n", middle(upstream, func(t startTimes) float64 { return t.Readyz }))
	fmt.Printf("| upstream's executables until their node is ready | %.2f s | |\n", middle(upstream, func(t startTimes) float64 { return t.NodeReady }))
	for _, name := range slices.Sorted(maps.Keys(published)) {
		fmt.Printf("| %s (published) | %s | |\n", name, published[name])
	}
	all := map[string]any{"kedge": results, baselineName: upstream}
	if err := writeJSON(filepath.Join(repository, filepath.Dir(resultFile), "throwaway.json"), all); err != nil {
		t.Fatal(err)
	}
}

// throwAway runs a command that prints when it started and when it ended: it ends at once.
func throwAway(ctx context.Context, host *harness.Host, args []string) (throwAwayResult, error) {
	cmd := host.Kedge(ctx, slices.Concat([]string{"run"}, args, []string{"--", "date", "+%s.%N"})...)
	began := time.Now()
	output, err := cmd.Output()
	ended := time.Now()
	if err != nil {
		return throwAwayResult{}, err
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(output)), 64)
	if err != nil {
		return throwAwayResult{}, err
	}
	unix := func(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
	return throwAwayResult{seconds - unix(began), unix(ended) - seconds}, nil
}

// middle returns the median of a value of the results.
func middle[T any](results []T, of func(T) float64) float64 {
	var values []float64
	for _, r := range results {
		values = append(values, of(r))
	}
	return median(values)
}
