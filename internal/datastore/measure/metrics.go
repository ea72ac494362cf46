package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// scrapePatience limits how long a datastore may take to answer a scrape.
const scrapePatience = 5 * time.Second

// Register adds the metrics of the datastore to a registry.
func Register(store datastore.Datastore, registry prometheus.Registerer) error {
	if err := registry.Register(newCollector(store)); err != nil {
		return fmt.Errorf("register metrics: %w", err)
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
