package supervisor

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// TestFormerNode: when a registration is over, the node's open connections are closed,
// and new ones get no answer, not even from the API. Other nodes are not affected.
func TestFormerNode(t *testing.T) {
	c := newCluster(t)
	ended := make(chan struct{})
	c.cfg.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/watch") {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(ended)
		}
	})
	address := start(t, c)
	client := func(name string) *http.Client {
		config := c.node(t, name).TLS(pki.NodeUser(name))
		transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	get := func(client *http.Client, path string) *http.Response {
		t.Helper()
		response, err := client.Get("https://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	lost, other := client("lost"), client("other")
	watch := get(lost, "/watch")
	if get(other, "/api").StatusCode != http.StatusOK || watch.StatusCode != http.StatusOK {
		t.Fatal("registered nodes are refused")
	}
	if err := registration.Revoke(t.Context(), c.client, "lost"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(watch.Body).ReadByte(); err == nil {
		t.Error("the watch of a revoked node is still open")
	}
	<-ended
	for _, path := range []string{"/api", join.ClusterPath, join.ConnectPath} {
		if status := get(lost, path).StatusCode; status != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, status)
		}
	}
	if status := get(other, "/api").StatusCode; status != http.StatusOK {
		t.Errorf("another node: got %d, want 200", status)
	}
}

// TestUnknownRegistrations: a server that does not know the registrations yet tells nodes
// to come again. It must not answer that they are unknown, because they would take that
// as final.
func TestUnknownRegistrations(t *testing.T) {
	c := newCluster(t)
	chain := certificate(t, c.node(t, "edge"), pki.NodeUser("edge"))
	c.cfg.Registry = registration.New()
	for _, path := range []string{"/api", join.ClusterPath} {
		response := c.call("GET", path, nil, func(r *http.Request) { r.TLS = &tls.ConnectionState{PeerCertificates: chain} })
		if response.Code != http.StatusServiceUnavailable || response.Header().Get("Retry-After") == "" {
			t.Error(path, fmt.Sprint(response.Code, response.Header()))
		}
	}
}
