package policy

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// scrapePatience limits how long nft may take to list the counters.
const scrapePatience = 5 * time.Second

// collector is a prometheus.Collector that reads the kernel's counters at each scrape.
type collector struct {
	policy  *Policy
	dropped *prometheus.Desc
}

func newCollector(p *Policy) collector {
	return collector{p, prometheus.NewDesc("kedge_network_policy_dropped_packets_total",
		"Packets of this node's pods that NetworkPolicies forbid, by the policies that isolate the pods. The count begins anew when a pod is the first or was the last that they isolate.",
		[]string{"direction", "policies"}, nil)}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(into chan<- *prometheus.Desc) { into <- c.dropped }

// Collect implements prometheus.Collector.
func (c collector) Collect(into chan<- prometheus.Metric) {
	table, labels := c.policy.counters()
	if len(labels) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	counters, err := table.nft.ListCounters(ctx)
	if err != nil {
		c.policy.log.Debugf("Cannot read the counters of dropped packets: %v", err)
		return
	}
	// Groups with the same policies differ in the numbers of named ports.
	total := map[[2]string]float64{}
	for _, counter := range counters {
		if label, ok := labels[counter.Name]; ok {
			total[label] += float64(*counter.Packets)
		}
	}
	for label, packets := range total {
		into <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, packets, label[0], label[1])
	}
}

// counters returns the direction and the policies of each counter in the kernel.
func (p *Policy) counters() (*table, map[string][2]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	labels := map[string][2]string{}
	if p.kernel != nil {
		for v, g := range p.kernel.variants {
			labels[v.counter()] = [2]string{string(v.direction), g.policies}
		}
	}
	return p.table, labels
}
