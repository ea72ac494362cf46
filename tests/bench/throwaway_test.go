package bench

import (
	"context"
	"fmt"
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

// TestThrowAway measures `kedge run`: how soon the user's command starts, and how soon everything is gone. It
// fails only if a cluster does not start.
func TestThrowAway(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	host := harness.NewNetwork(t).NewHost(t, "machine")
	kinds := []struct {
		name string
		args []string
	}{{"one node", nil}, {"three nodes", []string{"--nodes=3"}}, {"--api-only", []string{"--api-only"}}}
	results := map[string][]throwAwayResult{}
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
	}
	fmt.Println("| cluster | command starts after | gone after |\n| --- | --: | --: |")
	for _, kind := range kinds {
		start := middle(results[kind.name], func(r throwAwayResult) float64 { return r.Start })
		gone := middle(results[kind.name], func(r throwAwayResult) float64 { return r.Gone })
		fmt.Printf("| %s | %.2f s | %.2f s |\n", kind.name, start, gone)
	}
	if err := writeJSON(filepath.Join(repository, filepath.Dir(resultFile), "throwaway.json"), results); err != nil {
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
func middle(results []throwAwayResult, of func(throwAwayResult) float64) float64 {
	var values []float64
	for _, r := range results {
		values = append(values, of(r))
	}
	return median(values)
}
