package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcdremote"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// The servers with an API are those that have a lease, as they come and go.
func TestFollowLeases(t *testing.T) {
	store, err := etcdremote.New(etcdremote.Config{Endpoints: etcd.Start(t)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := datastore.NewClient(store.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	learned, ended := make(chan []string), make(chan error, 1)
	go func() {
		ended <- followLeases(ctx, store, 6443, func(servers []string) {
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

func TestUntilReached(t *testing.T) {
	failures := 1
	dial := untilReached(func(context.Context, string, string) (net.Conn, error) {
		if failures--; failures >= 0 {
			return nil, errors.New("refused")
		}
		return &net.TCPConn{}, nil
	})
	if conn, err := dial(t.Context(), "tcp", "x"); conn == nil || err != nil {
		t.Errorf("got %v, %v", conn, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failures = 1
	if _, err := dial(ctx, "tcp", "x"); err == nil || err.Error() != "refused" {
		t.Errorf("got %v", err)
	}
}

// A server without etcd tells where it is, and takes nobody in.
func TestEtcdElsewhere(t *testing.T) {
	e := etcdElsewhere{serverlb.New(serverlb.Config{Server: "192.0.2.1:6443", NodeName: "a", File: t.TempDir() + "/servers"})}
	if addresses, usable := e.Members(); usable || !slices.Equal(addresses, []string{"192.0.2.1:6443"}) {
		t.Errorf("got %v, %t", addresses, usable)
	}
	if _, err := e.Admit(t.Context(), join.MemberRequest{}); err == nil || errors.Is(err, join.ErrNotNow) || !strings.Contains(err.Error(), "192.0.2.1:6443") {
		t.Errorf("got %v", err)
	}
}

// Who asks a server without an API learns who has one, and a load balancer leaves it.
func TestNoAPIHere(t *testing.T) {
	servers := serverlb.New(serverlb.Config{NodeName: "a", File: t.TempDir() + "/servers"})
	servers.Learn([]string{"192.0.2.1:6443"})
	w := httptest.NewRecorder()
	(&remoteAPI{servers: servers}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "192.0.2.1:6443") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
