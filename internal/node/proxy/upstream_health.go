// Follows k8s.io/kubernetes v1.37.2, pkg/proxy/healthcheck/proxy_health.go.

package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
)

// serveHealth serves /healthz and /livez at address until stop is called. If address is empty it serves
// nothing. The answers are those of upstream's pkg/proxy/healthcheck/proxy_health.go, whose own
// server cannot be stopped.
//
//upstream:follows k8s.io/kubernetes/pkg/proxy/healthcheck/proxy_health.go ProxyHealthServer.Run healthzHandler.ServeHTTP livezHandler.ServeHTTP
func serveHealth(address string, health *healthcheck.ProxyHealthServer) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the proxy's health: %w: stop another kube-proxy on this host, or set another address with --kube-proxy-arg healthz-bind-address=ADDRESS:PORT", err)
	}
	answer := func(w http.ResponseWriter, state healthcheck.ProxyHealth, healthy bool) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if healthy {
			state.LastUpdated = time.Now()
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// If writing fails, the client is gone.
		_ = json.NewEncoder(w).Encode(state)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		state, eligible := health.Health(), health.NodeEligible()
		state.NodeEligible = &eligible
		answer(w, state, state.Healthy && eligible)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		state := health.Health()
		answer(w, state, state.Healthy)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logrus.WithField("component", name).Errorf("Cannot serve the proxy's health any more: %v", err)
		}
	}()
	return func() { _ = server.Close() }, nil
}
