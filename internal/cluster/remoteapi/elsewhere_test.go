package remoteapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// The servers with an API are those that have a lease. The list follows the leases.
func TestFollowLeases(t *testing.T) {
	url := etcd.Start(t)
	connect := func() (*clientv3.Client, error) { return clientv3.New(clientv3.Config{Endpoints: []string{url}}) }
	client, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	learned, ended := make(chan []string), make(chan error, 1)
	go func() {
		ended <- followLeases(ctx, connect, 6443, func(servers []string) {
			select {
			case learned <- servers:
			case <-ctx.Done():
			}
		})
	}()
	want := func(err error, servers ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for !slices.Equal(<-learned, servers) {
		}
	}
	want(nil)
	_, err = client.Put(ctx, apiLeases+"192.0.2.1", "a lease")
	want(err, "192.0.2.1:6443")
	_, err = client.Put(ctx, apiLeases+"192.0.2.2", "a lease")
	want(err, "192.0.2.1:6443", "192.0.2.2:6443")
	_, err = client.Delete(ctx, apiLeases+"192.0.2.1")
	want(err, "192.0.2.2:6443")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A server without an API answers which servers have one, and load balancers leave it.
func TestNoAPIHere(t *testing.T) {
	servers := serverlb.New(serverlb.Config{NodeName: "a", File: t.TempDir() + "/servers"})
	servers.Learn([]string{"192.0.2.1:6443"})
	w := httptest.NewRecorder()
	(&Elsewhere{servers: servers}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "192.0.2.1:6443") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
