package soak

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

// fewestSamples is how many samples the second half must have, so that a slope says something.
const fewestSamples = 8

// growth has what each node has used, each time that the cluster was well.
type growth struct {
	begun time.Time
	// samples has, for each node and measure, the values.
	samples map[string][]sample
}

type sample struct{ hours, value float64 }

func newGrowth() *growth { return &growth{begun: time.Now(), samples: map[string][]sample{}} }

// measure measures all nodes.
func (g *growth) measure(w *world) {
	w.Helper()
	hours := time.Since(g.begun).Hours()
	for _, n := range w.nodes {
		values, err := n.uses()
		if err != nil {
			w.Logf("measure %s: %v", n.Name, err)
			continue
		}
		// A process that is restarted begins again.
		if n.steady {
			if err := w.ofProcess(n, values); err != nil {
				w.Logf("measure the process on %s: %v", n.Name, err)
				continue
			}
		}
		for name, value := range values {
			key := n.Name + " " + name
			g.samples[key] = append(g.samples[key], sample{hours, value})
		}
	}
}

// uses returns what is on a host, whichever process has made it.
func (n *node) uses() (map[string]float64, error) {
	rules, err := n.Command(context.Background(), "nft", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", n.FirstProcess()))
	if err != nil {
		return nil, err
	}
	values := map[string]float64{
		"lines of nft": float64(strings.Count(string(rules), "\n")), "mounts": float64(strings.Count(string(mounts), "\n")),
	}
	for name, folder := range map[string]string{"files of kedge": n.Path("/var/lib/kedge"), "files of pods": n.Path("/var/lib/kubelet"), "files of the run": n.Path("/run/kedge")} {
		values[name] = 0
		_ = filepath.WalkDir(folder, func(_ string, _ fs.DirEntry, err error) error { // a file may disappear meanwhile
			if err == nil {
				values[name]++
			}
			return nil
		})
	}
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*" + n.Cgroup())
	for _, top := range append(hierarchies, "/sys/fs/cgroup"+n.Cgroup()) {
		_ = filepath.WalkDir(top, func(_ string, entry fs.DirEntry, err error) error { // a cgroup may disappear meanwhile
			if err == nil && entry.IsDir() {
				values["cgroups"]++
			}
			return nil
		})
	}
	return values, nil
}

// ofProcess adds what the process of a node uses.
func (w *world) ofProcess(n *node, values map[string]float64) error {
	process, err := procfs.NewProc(n.process.Process().Pid)
	if err != nil {
		return err
	}
	memory, err := process.ProcSMapsRollup()
	if err != nil {
		return err
	}
	files, err := process.FileDescriptorsLen()
	if err != nil {
		return err
	}
	// kedge is one process, so the metrics of its kubelet are about all of it.
	metrics, err := w.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", n.Name, "proxy/metrics").DoRaw(w.Context())
	if err != nil {
		return err
	}
	_, rest, found := strings.Cut(string(metrics), "\ngo_goroutines ")
	line, _, _ := strings.Cut(rest, "\n")
	goroutines, err := strconv.ParseFloat(line, 64)
	if !found || err != nil {
		return fmt.Errorf("read the number of goroutines from %q: %w", line, err)
	}
	values["anonymous MiB"], values["open files"], values["goroutines"] = float64(memory.Anonymous)/(1<<20), float64(files), goroutines
	return nil
}

// judge wants nothing to grow in the second half.
func (g *growth) judge(t *testing.T) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(g.samples)) {
		all := g.samples[key]
		half := all[len(all)/2:]
		if len(half) < fewestSamples {
			t.Logf("%s: %d samples are too few for a slope", key, len(half))
			continue
		}
		slope, certain := trend(half)
		t.Logf("%s: %s to %s, slope %s an hour", key, number(half[0].value), number(half[len(half)-1].value), number(slope))
		if certain && slope*(half[len(half)-1].hours-half[0].hours) > 0.05*median(half) {
			t.Errorf("%s grows by %s an hour", key, number(slope))
		}
	}
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', 1, 64) }

func median(all []sample) float64 {
	var values []float64
	for _, s := range all {
		values = append(values, s.value)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// trend returns the median of the slopes between all pairs of samples (Theil and Sen), and whether the samples grow with
// certainty: that the order of their values is by chance has a probability below 0.1 % (Mann and Kendall).
func trend(all []sample) (slope float64, certain bool) {
	var slopes []float64
	score := 0.0
	for i, later := range all {
		for _, earlier := range all[:i] {
			if later.hours > earlier.hours {
				slopes = append(slopes, (later.value-earlier.value)/(later.hours-earlier.hours))
			}
			switch {
			case later.value > earlier.value:
				score++
			case later.value < earlier.value:
				score--
			}
		}
	}
	slices.Sort(slopes)
	n := float64(len(all))
	deviation := math.Sqrt(n * (n - 1) * (2*n + 5) / 18)
	return slopes[len(slopes)/2], (score-1)/deviation > 3.1
}

// TestTrend tells growth from noise.
func TestTrend(t *testing.T) {
	noise := []float64{3, -2, 5, 1, -4, 2, -1, 0, 4, -3, 1, -5, 2, 0, 3, -2}
	for _, test := range []struct {
		name  string
		value func(n int) float64
		grows bool
	}{
		{"noise", func(n int) float64 { return 100 + noise[n] }, false},
		{"always the same", func(int) float64 { return 100 }, false},
		{"growth in noise", func(n int) float64 { return 100 + noise[n] + 2*float64(n) }, true},
		{"one more each time", func(n int) float64 { return 100 + float64(n) }, true},
		{"a step down", func(n int) float64 { return 100 - 10*math.Floor(float64(n)/8) + noise[n]/10 }, false},
	} {
		var all []sample
		for n := range noise {
			all = append(all, sample{float64(n) / 10, test.value(n)})
		}
		if slope, grows := trend(all); grows != test.grows {
			t.Errorf("%s: slope %f, grows: %t", test.name, slope, grows)
		}
	}
}
