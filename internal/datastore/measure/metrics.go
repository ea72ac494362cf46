package measure

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// scrapePatience limits how long a datastore may take to answer a scrape.
const scrapePatience = 5 * time.Second

// Register adds the metrics of the datastore to those that the API server of this
// process serves. It also adds the process's own metrics whose names begin with
// one of prefixes.
func Register(store datastore.Datastore, prefixes ...string) error {
	for _, collector := range []prometheus.Collector{newCollector(store), forwarder{prometheus.DefaultGatherer, prefixes}} {
		if err := legacyregistry.Registerer().Register(collector); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// collector is a prometheus.Collector that asks the datastore at each scrape.
type collector struct {
	store                              datastore.Datastore
	size, used, free, commit, slowness *prometheus.Desc
}

func newCollector(store datastore.Datastore) *collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kedge_datastore_"+name, help, []string{"kind"}, nil)
	}
	return &collector{
		store:    store,
		size:     desc("size_bytes", "Size of the database."),
		used:     desc("used_bytes", "Part of the database that is in use; the rest is free for reuse."),
		free:     desc("disk_free_bytes", "Free space on the file system of the database."),
		commit:   desc("commit_duration_seconds", "Latency of commits; with SQLite and etcd, of syncs of the disk."),
		slowness: desc("slow_operations_total", fmt.Sprintf("Operations that took longer than %s.", slow)),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(into chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.size, c.used, c.free, c.commit, c.slowness} {
		into <- desc
	}
}

// Collect implements prometheus.Collector. It leaves out values that are not
// known.
func (c *collector) Collect(into chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	stats := c.store.Stats(ctx)
	number := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
		into <- prometheus.MustNewConstMetric(desc, kind, value, stats.Kind)
	}
	if stats.Size > 0 {
		number(c.size, prometheus.GaugeValue, float64(stats.Size))
	}
	if stats.Used > 0 {
		number(c.used, prometheus.GaugeValue, float64(stats.Used))
	}
	if stats.Disk != nil {
		number(c.free, prometheus.GaugeValue, float64(stats.Disk.Free))
	}
	if stats.Slow != nil {
		number(c.slowness, prometheus.CounterValue, float64(stats.Slow.Count))
	}
	if stats.Commits != nil {
		count, buckets := cumulative(stats.Commits)
		into <- prometheus.MustNewConstHistogram(c.commit, count, stats.Commits.Sum.Seconds(), buckets, stats.Kind)
	}
}

// cumulative returns a histogram in Prometheus's form: each bucket includes all
// buckets below it.
func cumulative(h *datastore.Histogram) (count uint64, buckets map[float64]uint64) {
	buckets = map[float64]uint64{}
	last := len(h.Counts) - 1
	for i, n := range h.Counts[:last] {
		count += n
		buckets[datastore.Bound(i).Seconds()] = count
	}
	return count + h.Counts[last], buckets
}

// forwarder is a prometheus.Collector of metrics that belong to another registry.
// Embedded etcd registers its metrics with the process's default registry, and
// the API server shows only its own.
type forwarder struct {
	from     prometheus.Gatherer
	prefixes []string
}

// Describe implements prometheus.Collector. A collector that describes nothing
// may collect anything.
func (forwarder) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f forwarder) Collect(into chan<- prometheus.Metric) {
	if len(f.prefixes) == 0 {
		return
	}
	// When Gather fails, it still returns the metrics that it could gather.
	families, _ := f.from.Gather()
	for _, family := range families {
		if !slices.ContainsFunc(f.prefixes, func(p string) bool { return strings.HasPrefix(family.GetName(), p) }) {
			continue
		}
		desc := prometheus.NewDesc(family.GetName(), family.GetHelp(), nil, nil)
		for _, metric := range family.Metric {
			into <- forwarded{desc, metric}
		}
	}
}

// forwarded is a prometheus.Metric that forwarder passes on.
type forwarded struct {
	desc   *prometheus.Desc
	metric *dto.Metric
}

func (f forwarded) Desc() *prometheus.Desc { return f.desc }

func (f forwarded) Write(into *dto.Metric) error {
	into.Label, into.Counter, into.Gauge = f.metric.Label, f.metric.Counter, f.metric.Gauge
	into.Summary, into.Histogram, into.Untyped = f.metric.Summary, f.metric.Histogram, f.metric.Untyped
	return nil
}
