package gatewaycontrol

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are those of a Compiler: how many objects there are that kedge serves, and how long
// it takes to work out what they mean. It is a prometheus.Collector.
type metrics struct {
	gateways, ingresses, routes atomic.Int64
	objects                     *prometheus.Desc
	duration                    prometheus.Histogram
}

func newMetrics() *metrics {
	return &metrics{
		objects: prometheus.NewDesc("kedge_gateway_objects", "Objects that kedge's gateway serves, by kind: gateways, ingresses, and the routes that nodes know.",
			[]string{"kind"}, nil),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "kedge_gateway_compile_duration_seconds",
			Help:    "Time to work out what Gateways, Ingresses and routes mean, after a change.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
	}
}

// observe takes the figures of a run.
func (m *metrics) observe(now *compiled, took time.Duration) {
	m.gateways.Store(int64(len(now.gateways.Gateways)))
	m.ingresses.Store(int64(len(now.ingresses.Served)))
	m.routes.Store(int64(len(now.state.Routes)))
	m.duration.Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(into chan<- *prometheus.Desc) {
	into <- m.objects
	m.duration.Describe(into)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(into chan<- prometheus.Metric) {
	for kind, value := range map[string]int64{"gateway": m.gateways.Load(), "ingress": m.ingresses.Load(), "route": m.routes.Load()} {
		into <- prometheus.MustNewConstMetric(m.objects, prometheus.GaugeValue, float64(value), kind)
	}
	m.duration.Collect(into)
}
