package sockets

import "github.com/prometheus/client_golang/prometheus"

// metrics are by the name of the socket.
type metrics struct {
	current  *prometheus.GaugeVec
	total    *prometheus.CounterVec
	refused  *prometheus.CounterVec
	failures *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	labels := []string{"socket"}
	m := &metrics{
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kedge_gateway_connections",
			Help: "Connections and sessions of UDP that are open, by the socket of the gateway.",
		}, labels),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kedge_gateway_connections_total",
			Help: "Connections and sessions of UDP that were accepted, by the socket of the gateway.",
		}, labels),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kedge_gateway_refused_total",
			Help: "Connections, sessions of UDP and requests that were refused because there were too many, in all, of one client, or to the backends of one namespace, by the socket of the gateway.",
		}, labels),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kedge_gateway_tls_handshake_errors_total",
			Help: "Handshakes of TLS that failed, by the socket of the gateway.",
		}, labels),
	}
	if registerer != nil {
		registerer.MustRegister(m.current, m.total, m.refused, m.failures)
	}
	return m
}

// opened counts a connection until closed is called.
func (m *metrics) opened(socket string) (closed func()) {
	m.total.WithLabelValues(socket).Inc()
	current := m.current.WithLabelValues(socket)
	current.Inc()
	return current.Dec
}

// forget removes the metrics of a socket that is closed.
func (m *metrics) forget(socket string) {
	m.current.DeleteLabelValues(socket)
	m.total.DeleteLabelValues(socket)
	m.refused.DeleteLabelValues(socket)
	m.failures.DeleteLabelValues(socket)
}
