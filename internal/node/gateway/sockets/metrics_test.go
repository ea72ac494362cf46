package sockets

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	w := newWorld(t, func(s *Sockets) { s.metrics = newMetrics(registry) })
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTPS})
	if _, err := dialTLS(port, &tls.Config{ServerName: "a.example"}); err == nil {
		t.Fatal("a listener without a certificate has shown one")
	}
	eventually(t, "counting", func() bool {
		return testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kedge_gateway_connections Connections and sessions of UDP that are open, by the socket of the gateway.
# TYPE kedge_gateway_connections gauge
kedge_gateway_connections{socket="web"} 0
# HELP kedge_gateway_connections_total Connections and sessions of UDP that were accepted, by the socket of the gateway.
# TYPE kedge_gateway_connections_total counter
kedge_gateway_connections_total{socket="web"} 1
# HELP kedge_gateway_tls_handshake_errors_total Handshakes of TLS that failed, by the socket of the gateway.
# TYPE kedge_gateway_tls_handshake_errors_total counter
kedge_gateway_tls_handshake_errors_total{socket="web"} 1
`)) == nil
	})
	delete(w.state.Sockets, "web")
	w.apply()
	eventually(t, "forgetting the socket", func() bool {
		n, err := testutil.GatherAndCount(registry)
		return n == 0 && err == nil
	})
}
