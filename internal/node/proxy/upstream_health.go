// Follows k8s.io/kubernetes v1.36.3, pkg/proxy/healthcheck/proxy_health.go.

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

// serveHealth serves /healthz and /livez at address, or nothing if it is
// empty, until stop is called. The answers are upstream's, of
// pkg/proxy/healthcheck/proxy_health.go, whose own server cannot be stopped.
//
//upstream:follows k8s.io/kubernetes/pkg/proxy/healthcheck/proxy_health.go ProxyHealthServer.Run healthzHandler.ServeHTTP livezHandler.ServeHTTP
func serveHealth(address string, health *healthcheck.ProxyHealthServer) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve the proxy's health: %w; another kube-proxy may be running, or give another --kube-proxy-arg healthz-bind-address", err)
	}
	answer := func(w http.ResponseWriter, state healthcheck.ProxyHealth, healthy bool) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if healthy {
			state.LastUpdated = time.Now()
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// An error is that nobody reads the answer any more.
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
			logrus.WithField("component", name).Errorf("The proxy's health is no longer served: %v", err)
		}
	}()
	return func() { _ = server.Close() }, nil
}
