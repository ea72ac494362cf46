package serverlb

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// node is the node name with which a balancer prefers the test's servers in the order in
// which they were started; see startServers.
const node = "node-a"

// server is a fake API server.
type server struct {
	address string
	web     *httptest.Server
	// unready makes /readyz fail. stopping says that it fails because the server stops in
	// order. hangs makes it never answer.
	unready, stopping, hangs atomic.Bool
	release                  chan struct{}
	// endpoints has what a watch of the EndpointSlice gets.
	endpoints chan *discoveryv1.EndpointSlice
}

// stop simulates a crash: nothing listens any more, and connections are gone.
func (s *server) stop() {
	_ = s.web.Listener.Close()
	s.web.CloseClientConnections()
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/readyz" && s.hangs.Load():
		select {
		case <-s.release:
		case <-r.Context().Done():
		}
	case r.URL.Path == "/readyz" && s.unready.Load():
		http.Error(w, "[+]ping ok\n[-]etcd failed: reason withheld", http.StatusInternalServerError)
	case r.URL.Path == "/readyz" && s.stopping.Load():
		http.Error(w, "[+]ping ok\n[-]shutdown failed: reason withheld", http.StatusInternalServerError)
	case r.URL.Path == "/stream":
		_, _ = io.WriteString(w, s.address)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-s.release:
		case <-r.Context().Done():
		}
	case strings.HasSuffix(r.URL.Path, "/endpointslices"):
		s.serveEndpoints(w, r)
	default:
		_, _ = io.WriteString(w, s.address)
	}
}

func (s *server) serveEndpoints(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		_ = json.NewEncoder(w).Encode(&discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		})
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		http.Error(w, "not in this test", http.StatusUnprocessableEntity)
		return
	}
	for {
		select {
		case slice := <-s.endpoints:
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": slice})
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// startServers starts n servers and sorts them in the order in which node prefers them.
func startServers(t *testing.T, n int) []*server {
	t.Helper()
	servers := make([]*server, n)
	var addresses []string
	for i := range servers {
		s := &server{release: make(chan struct{}), endpoints: make(chan *discoveryv1.EndpointSlice)}
		s.web = httptest.NewUnstartedServer(s)
		s.web.EnableHTTP2 = true
		s.web.StartTLS()
		s.address = s.web.Listener.Addr().String()
		t.Cleanup(func() {
			close(s.release)
			s.web.Close()
		})
		servers[i] = s
		addresses = append(addresses, s.address)
	}
	order := (&Balancer{cfg: Config{Server: addresses[0], NodeName: node}}).order(addresses)
	slices.SortFunc(servers, func(a, b *server) int {
		return slices.Index(order, a.address) - slices.Index(order, b.address)
	})
	return servers
}

func addressesOf(servers []*server) []string {
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.address)
	}
	return addresses
}

// newBalancer makes a balancer that knows the servers.
func newBalancer(t *testing.T, servers []*server) *Balancer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "servers.json")
	addresses := addressesOf(servers)
	if err := remember(file, addresses[0], addresses); err != nil {
		t.Fatal(err)
	}
	return New(Config{Server: addresses[0], NodeName: node, File: file})
}

// trusting is the TLS configuration of clients of all test servers.
func trusting(s *server) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(s.web.Certificate())
	return &tls.Config{RootCAs: pool, ServerName: "example.com"} // example.com is in httptest's certificate
}

func newClient(t *testing.T, b *Balancer, s *server) *http.Client {
	transport := &http.Transport{DialContext: b.DialContext, TLSClientConfig: trusting(s), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get returns the server that has answered.
func get(client *http.Client, path string) (string, error) {
	response, err := client.Get("https://kubernetes.default.svc" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func want(t *testing.T, client *http.Client, s *server) {
	t.Helper()
	got, err := get(client, "/")
	// A request may be made on a connection that is just breaking. A second attempt does
	// not meet such a connection.
	if err != nil {
		got, err = get(client, "/")
	}
	if err != nil || got != s.address {
		t.Errorf("got %q, %v, want %s", got, err, s.address)
	}
}

func TestDialFailsOver(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 3)
	b := newBalancer(t, servers)
	client := newClient(t, b, servers[0])
	want(t, client, servers[0])
	servers[0].stop()
	want(t, client, servers[1])
	servers[1].stop()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { want(t, newClient(t, b, servers[0]), servers[2]) })
	}
	all.Wait()
	servers[2].stop()
	if _, err := get(client, "/"); err == nil || strings.Count(err.Error(), "connection refused") != 3 {
		t.Errorf("all servers have stopped: got %v", err)
	}
}

func TestStartWithDeadServers(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 3)
	b := newBalancer(t, servers)
	servers[0].stop()
	servers[1].stop()
	want(t, newClient(t, b, servers[2]), servers[2])
}

func TestOnlyServer(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 1)
	b := New(Config{Server: servers[0].address, NodeName: node, File: filepath.Join(t.TempDir(), "servers.json")})
	want(t, newClient(t, b, servers[0]), servers[0])
	servers[0].stop()
	if _, err := b.DialContext(t.Context(), "tcp", "any:443"); err == nil {
		t.Error("dialed a server that has stopped")
	}
}

func TestMoveClosesConnections(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 2)
	b := newBalancer(t, servers)
	old, err := b.DialContext(t.Context(), "tcp", "any:443")
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	b.move("no longer in use", servers[1].address)
	if b.inUse() != servers[0].address {
		t.Error("moved away from a server that has not failed")
	}
	b.move(servers[0].address, servers[1].address)
	if _, err := old.Read(make([]byte, 1)); err == nil {
		t.Error("a connection to the failed server is open")
	}
	kept, err := b.DialContext(t.Context(), "tcp", "any:443")
	if err != nil {
		t.Fatal(err)
	}
	if kept.RemoteAddr().String() != servers[1].address {
		t.Errorf("dialed %s, want %s", kept.RemoteAddr(), servers[1].address)
	}
	_ = kept.Close()
	if len(b.conns) != 0 {
		t.Errorf("%d closed connections are remembered", len(b.conns))
	}
	raw, err := dial(t.Context(), "tcp", servers[0].address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.track(raw, servers[0].address); err == nil {
		t.Error("took a connection to a server that is not in use")
	}
}

// TestChecks has servers that accept connections but do not work.
func TestChecks(t *testing.T) {
	for name, fail := range map[string]func(*server){
		"not ready":  func(s *server) { s.unready.Store(true) },
		"no answer":  func(s *server) { s.hangs.Store(true) },
		"is stopped": (*server).stop,
	} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			servers := startServers(t, 3)
			b := newBalancer(t, servers)
			check := &checker{balancer: b, tls: trusting(servers[0]), path: ReadyPath, interval: 5 * time.Millisecond, patience: 500 * time.Millisecond}
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { check.run(ctx) })
			defer running.Wait()
			defer cancel()

			client := newClient(t, b, servers[0])
			for range 2 {
				response, err := client.Get("https://kubernetes.default.svc/stream")
				if err != nil {
					t.Fatal(err)
				}
				address := make([]byte, len(servers[0].address))
				if _, err := io.ReadFull(response.Body, address); err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(servers, func(s *server) bool { return s.address == string(address) })
				fail(servers[i])
				servers = slices.Delete(servers, i, i+1)
				// A watch that would never end.
				if _, err := io.ReadAll(response.Body); err == nil {
					t.Error("the stream has ended well")
				}
				_ = response.Body.Close()
				if got, err := get(client, "/"); err != nil || !slices.Contains(addressesOf(servers), got) {
					t.Errorf("got %q, %v, want one of %v", got, err, addressesOf(servers))
				}
			}
			// If no server is better, the last one is kept.
			servers[0].unready.Store(true)
			want(t, client, servers[0])
		})
	}
}

// TestStopInOrder has a server that answers all open requests before it ends.
func TestStopInOrder(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 2)
	b := newBalancer(t, servers)
	check := &checker{balancer: b, tls: trusting(servers[0]), path: ReadyPath, patience: time.Minute}
	defer check.forget(nil)
	asked, err := newClient(t, b, servers[0]).Get("https://kubernetes.default.svc/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Body.Close()
	servers[0].stopping.Store(true)
	check.check(t.Context())
	want(t, newClient(t, b, servers[1]), servers[1])
	servers[0].release <- struct{}{}
	if answer, err := io.ReadAll(asked.Body); err != nil || string(answer) != servers[0].address {
		t.Errorf("the request that was under way got %q, %v", answer, err)
	}
}

func TestFollowLearnsAndRemembers(t *testing.T) {
	testutil.CheckLeaks(t)
	servers := startServers(t, 3)
	first := servers[2] // the least preferred server
	cfg := Config{Server: first.address, NodeName: node, File: filepath.Join(t.TempDir(), "servers.json")}
	b := New(cfg)
	transport := &http.Transport{DialContext: b.DialContext, TLSClientConfig: trusting(first), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	follow := b.Follow(FollowConfig{
		Source: Endpoints(&rest.Config{Host: "https://kubernetes.default.svc", Transport: transport}),
		Path:   ReadyPath,
		TLS:    trusting(first),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- follow.Run(ctx, func() {}) }()

	known, changed := b.Servers()
	if !slices.Equal(known, []string{first.address}) {
		t.Errorf("knows %v at first", known)
	}
	first.endpoints <- sliceOf(servers)
	<-changed
	known, _ = b.Servers()
	if !slices.Equal(known, addressesOf(servers)) {
		t.Errorf("got %v, want %v", known, addressesOf(servers))
	}
	if b.inUse() != first.address {
		t.Error("the balancer changed to another server although this one works")
	}
	first.endpoints <- sliceOf(nil)
	first.endpoints <- sliceOf(servers[1:])
	for len(known) != 2 {
		known, _ = b.Servers()
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	again := New(cfg)
	if known, _ := again.Servers(); !slices.Equal(known, addressesOf(servers[1:])) {
		t.Errorf("remembers %v, want %v", known, addressesOf(servers[1:]))
	}
	cfg.Server = servers[0].address
	if known, _ := New(cfg).Servers(); !slices.Equal(known, []string{cfg.Server}) {
		t.Errorf("remembers %v for another cluster", known)
	}
}

func TestBrokenMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(file, []byte(`{"server": "a:6443", "serv`), 0o600); err != nil {
		t.Fatal(err)
	}
	if known, _ := New(Config{Server: "a:6443", File: file}).Servers(); !slices.Equal(known, []string{"a:6443"}) {
		t.Errorf("got %v", known)
	}
}

// TestOrder checks that nodes spread over servers, and that each node keeps its order
// when a server is added.
func TestOrder(t *testing.T) {
	preferred := map[string]int{}
	for i := range 300 {
		b := &Balancer{cfg: Config{Server: "a:6443", NodeName: fmt.Sprintf("node-%d", i)}}
		two, three := b.order([]string{"b:6443", "a:6443"}), b.order([]string{"c:6443", "b:6443"})
		if kept := slices.DeleteFunc(slices.Clone(three), func(s string) bool { return s == "c:6443" }); !slices.Equal(kept, two) {
			t.Errorf("%v has become %v", two, three)
		}
		preferred[three[0]]++
	}
	for server, nodes := range preferred {
		if nodes < 60 || nodes > 140 {
			t.Errorf("%d of 300 nodes prefer %s", nodes, server)
		}
	}
}

func sliceOf(servers []*server) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "2"},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	// An EndpointSlice has one port for all, but the servers of this test have one each.
	for _, s := range servers {
		var port int32
		_, _ = fmt.Sscanf(s.address, "127.0.0.1:%d", &port)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Port: &port})
	}
	if len(servers) > 0 {
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}}
	}
	return slice
}

// TestFollowAnswers has servers that list the servers themselves. One of them does not
// work.
func TestFollowAnswers(t *testing.T) {
	testutil.CheckLeaks(t)
	var members []string
	answer := func(code int) *httptest.Server {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != join.EtcdPath {
				t.Errorf("got path %s, want %s", r.URL.Path, join.EtcdPath)
			}
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(join.EtcdMembers{Servers: members})
		}))
		t.Cleanup(server.Close)
		return server
	}
	without, with := answer(http.StatusServiceUnavailable), answer(http.StatusOK)
	member := with.Listener.Addr().String()
	members = []string{member}

	b := New(Config{NodeName: node, File: filepath.Join(t.TempDir(), "servers.json")})
	if _, err := b.DialContext(t.Context(), "tcp", "x"); err == nil {
		t.Error("a server was dialed, and none is known")
	}
	b.Learn(nil)
	b.Learn([]string{without.Listener.Addr().String()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	follow := b.Follow(FollowConfig{Path: join.EtcdPath, TLS: &tls.Config{InsecureSkipVerify: true}})
	go func() { ended <- follow.Run(ctx, func() {}) }()
	for b.inUse() != member {
		time.Sleep(time.Millisecond)
	}
	conn, err := b.DialContext(ctx, "tcp", "x")
	if err != nil || conn.RemoteAddr().String() != member {
		t.Errorf("dialed %v, %v", conn, err)
	} else {
		_ = conn.Close()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
