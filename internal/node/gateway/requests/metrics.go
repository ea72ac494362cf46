package requests

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// durations are the upper bounds of the histogram, in seconds.
var durations = [...]float64{.001, .005, .025, .1, .5, 2.5, 10, 60}

// stats counts the requests of a route.
type stats struct {
	inFlight atomic.Int64
	// classes are by the first digit of the status.
	classes [6]atomic.Uint64
	// buckets are by durations; the last one is for longer requests.
	buckets [len(durations) + 1]atomic.Uint64
	nanos   atomic.Int64
}

// unused tells whether the route has got no request yet.
func (s *stats) unused() bool {
	for i := range s.buckets {
		if s.buckets[i].Load() > 0 {
			return false
		}
	}
	return s.inFlight.Load() == 0
}

// begin counts a request that begins.
func (s *stats) begin() { s.inFlight.Add(1) }

// end counts a request that has ended.
func (s *stats) end(x *exchange) {
	s.inFlight.Add(-1)
	if class := x.w.status / 100; class < len(s.classes) {
		s.classes[class].Add(1)
	}
	took := time.Since(x.began)
	s.nanos.Add(int64(took))
	for i, bound := range durations {
		if took.Seconds() <= bound {
			s.buckets[i].Add(1)
			return
		}
	}
	s.buckets[len(durations)].Add(1)
}

// collector is a prometheus.Collector for the routes of a table. So there are no metrics of
// routes that are gone, and none of what clients make up.
type collector struct {
	table                        *atomic.Pointer[table]
	requests, duration, inFlight *prometheus.Desc
}

func newCollector(of *atomic.Pointer[table]) collector {
	return collector{
		of,
		prometheus.NewDesc("kedge_gateway_requests_total",
			"Requests that a route of a Gateway or an Ingress has taken, by the class of the status.",
			[]string{"route", "code"}, nil),
		prometheus.NewDesc("kedge_gateway_request_duration_seconds",
			"How long requests of a route took until their answers were sent.", []string{"route"}, nil),
		prometheus.NewDesc("kedge_gateway_requests_in_flight",
			"Requests of a route that are being answered, with upgraded connections.", []string{"route"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c collector) Describe(into chan<- *prometheus.Desc) {
	into <- c.requests
	into <- c.duration
	into <- c.inFlight
}

// Collect implements prometheus.Collector.
func (c collector) Collect(into chan<- prometheus.Metric) {
	for route, s := range c.table.Load().stats {
		if s.unused() {
			continue
		}
		for class := range s.classes {
			if count := s.classes[class].Load(); count > 0 {
				into <- prometheus.MustNewConstMetric(c.requests, prometheus.CounterValue, float64(count),
					route, strconv.Itoa(class)+"xx")
			}
		}
		buckets, count := make(map[float64]uint64, len(durations)), uint64(0)
		for i, bound := range durations {
			count += s.buckets[i].Load()
			buckets[bound] = count
		}
		if count += s.buckets[len(durations)].Load(); count > 0 {
			into <- prometheus.MustNewConstHistogram(c.duration, count,
				time.Duration(s.nanos.Load()).Seconds(), buckets, route)
		}
		into <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(s.inFlight.Load()), route)
	}
}
