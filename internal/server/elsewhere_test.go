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

	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/kedge-dev/kedge/internal/apilb"
	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/datastore/kine"
)

// The servers with an API are those that have a lease, as they come and go.
func TestFollowLeases(t *testing.T) {
	store := kine.New(kine.Config{Dir: t.TempDir(), Socket: t.TempDir() + "/kine.sock"})
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 2)
	go func() { ended <- store.Run(ctx, func() { close(ready) }) }()
	<-ready
	client := store.Endpoint().NewClient()
	learned := make(chan []string)
	go func() {
		ended <- followLeases(ctx, store, 6443, func(servers []string) {
			select {
			case learned <- servers:
			case <-ctx.Done():
			}
		})
	}()
	want := func(servers ...string) {
		t.Helper()
		for got := range learned {
			if slices.Equal(got, servers) {
				return
			}
		}
	}
	want()
	put(t, client, "192.0.2.1")
	want("192.0.2.1:6443")
	put(t, client, "192.0.2.2")
	want("192.0.2.1:6443", "192.0.2.2:6443")
	_ = client.Close()
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// put makes a lease as an API server does.
func put(t *testing.T, client *kubernetes.Client, address string) {
	t.Helper()
	answer, err := client.Kubernetes.OptimisticPut(t.Context(), apiLeases+address, []byte("a lease"), 0, kubernetes.PutOptions{})
	if err != nil || !answer.Succeeded {
		t.Fatalf("put: %v", err)
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
	e := etcdElsewhere{apilb.New(apilb.Config{Server: "192.0.2.1:6443", NodeName: "a", File: t.TempDir() + "/servers"})}
	if addresses, usable := e.Members(); usable || !slices.Equal(addresses, []string{"192.0.2.1:6443"}) {
		t.Errorf("got %v, %t", addresses, usable)
	}
	if _, err := e.Admit(t.Context(), bootstrap.MemberRequest{}); err == nil || errors.Is(err, bootstrap.ErrNotNow) || !strings.Contains(err.Error(), "192.0.2.1:6443") {
		t.Errorf("got %v", err)
	}
}

// Who asks a server without an API learns who has one, and a load balancer leaves it.
func TestNoAPIHere(t *testing.T) {
	servers := apilb.New(apilb.Config{NodeName: "a", File: t.TempDir() + "/servers"})
	servers.Learn([]string{"192.0.2.1:6443"})
	w := httptest.NewRecorder()
	(&remoteAPI{servers: servers}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "192.0.2.1:6443") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}
