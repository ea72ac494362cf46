package measure

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// newMeter returns a meter with a clock that the test sets, and the meter's log.
func newMeter() (m *Meter, now *time.Time, log *bytes.Buffer) {
	logger := logrus.New()
	log, now = &bytes.Buffer{}, new(time.Time)
	logger.SetOutput(log)
	*now = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	m = NewMeter(logrus.NewEntry(logger), "Look at the disk")
	m.now = func() time.Time { return *now }
	return m, now, log
}

func TestRecentCommits(t *testing.T) {
	m, now, _ := newMeter()
	recent := func() uint64 {
		var s datastore.Stats
		m.Add(&s)
		return s.Recent.Count
	}
	for minute := range 30 {
		m.Committed(time.Millisecond)
		if want := uint64(min(minute+1, 6)); recent() != want {
			t.Errorf("in minute %d there were %d, want %d", minute, recent(), want)
		}
		*now = now.Add(time.Minute)
	}
	if len(m.marks) > 7 {
		t.Errorf("%d marks are kept", len(m.marks))
	}
	*now = now.Add(time.Hour)
	m.Committed(time.Millisecond)
	if recent() > 2 { // the last interval with commits counts too
		t.Errorf("got %d commits after an hour without any, want at most 2", recent())
	}
	var s datastore.Stats
	if m.Add(&s); s.Commits.Counts[0] != 31 {
		t.Errorf("got counts %v since the start, want 31 in the first", s.Commits.Counts)
	}
}

// Slow operations are counted, and the last one is known. One message a minute
// says how many there were.
func TestSlowOperations(t *testing.T) {
	m, now, log := newMeter()
	m.Committed(3 * time.Second)
	for range 100 {
		m.Done("get", "/registry/quick", now.Add(-time.Millisecond))
		m.Done("list", "/registry/pods/", now.Add(-2*time.Second))
		*now = now.Add(time.Second)
	}
	var s datastore.Stats
	if m.Add(&s); s.Slow.Count != 100 || s.Slow.Last != "list /registry/pods/" || s.Slow.Took != 2*time.Second {
		t.Errorf("got %+v", s.Slow)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "list /registry/pods/ took 2s; 1 operations") ||
		!strings.Contains(lines[1], "; 60 operations") || !strings.Contains(lines[1], "Look at the disk") {
		t.Errorf("got log\n%s\nwant two lines, with operations and what to look at", log)
	}
}

// store is a datastore.Datastore that has only stats.
type store struct {
	datastore.Datastore
	stats datastore.Stats
}

func (s store) Stats(context.Context) datastore.Stats { return s.stats }

func gathered(t *testing.T, collector prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(collector); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

func TestMetrics(t *testing.T) {
	commits := &datastore.Histogram{}
	commits.Add(time.Millisecond)
	commits.Add(3 * time.Millisecond)
	commits.Add(time.Minute)
	text := gathered(t, newCollector(store{stats: datastore.Stats{
		Kind: "sqlite", Size: 4096, Used: 1024, Disk: &datastore.Disk{Free: 0, Size: 9}, Commits: commits, Slow: &datastore.Slow{Count: 2},
	}}))
	for _, want := range []string{
		`kedge_datastore_size_bytes{kind="sqlite"} 4096`,
		`kedge_datastore_used_bytes{kind="sqlite"} 1024`,
		`kedge_datastore_disk_free_bytes{kind="sqlite"} 0`,
		`kedge_datastore_slow_operations_total{kind="sqlite"} 2`,
		`kedge_datastore_commit_duration_seconds_bucket{kind="sqlite",le="0.001"} 1`,
		`kedge_datastore_commit_duration_seconds_bucket{kind="sqlite",le="0.004"} 2`,
		`kedge_datastore_commit_duration_seconds_bucket{kind="sqlite",le="8.192"} 2`,
		`kedge_datastore_commit_duration_seconds_bucket{kind="sqlite",le="+Inf"} 3`,
		`kedge_datastore_commit_duration_seconds_sum{kind="sqlite"} 60.004`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if text := gathered(t, newCollector(store{stats: datastore.Stats{Kind: "external-etcd"}})); text != "" {
		t.Errorf("got metrics without data:\n%s", text)
	}
}
