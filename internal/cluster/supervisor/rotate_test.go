package supervisor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// start runs a server until the test ends, and returns its address.
func start(t *testing.T, c *cluster) string {
	t.Helper()
	listener, err := Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	c.cfg.Listener, c.cfg.Certificate = listener, c.cfg.PKI.ServingCertificate
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// joining returns the configuration with which a new machine joins the server at the
// address.
func joining(t *testing.T, address *atomic.Value, token string) join.Config {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.AgentTLS(), dir.AgentEtc()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return join.Config{
		Server: "server:6443",
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address.Load().(string))
		},
		Token: token, Name: "edge", Dir: dir, PasswordFile: filepath.Join(string(dir), "etc", "password"),
		Resolve: func(join.Settings) (host.Node, error) {
			return host.Node{Name: "edge", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}, nil
		},
	}
}

// TestFollow: a running node follows to the authorities of restarted servers, and other
// nodes join with tokens from before and after.
func TestFollow(t *testing.T) {
	dir, client := datadir.Dir(t.TempDir()), newAPI()
	first := clusterIn(t, dir, client)
	var address atomic.Value
	address.Store(start(t, first))
	node, err := join.Join(t.Context(), joining(t, &address, first.token))
	if err != nil {
		t.Fatal(err)
	}
	renewed := func() bool {
		t.Helper()
		files, err := node.Renew(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		return len(files) > 0
	}
	if renewed() {
		t.Error("a certificate that is not due was renewed")
	}
	tokens := []string{first.token}
	for step, prepare := range []func() error{
		func() error { return pki.PrepareAuthorities(dir, time.Now()) },
		func() error { return pki.DropAuthorities(dir) },
	} {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		if err := pki.TakeAuthorities(dir, time.Now()); err != nil {
			t.Fatal(err)
		}
		next := clusterIn(t, dir, client)
		address.Store(start(t, next))
		if !renewed() || renewed() {
			t.Errorf("step %d: renewed not once", step)
		}
		tokens = append(tokens, next.token)
		for i, token := range tokens {
			// The token from before is valid until the old authority is gone.
			_, err := join.Join(t.Context(), joining(t, &address, token))
			if gone := step == 1 && i == 0; gone != (err != nil && strings.Contains(err.Error(), "use the new token")) {
				t.Errorf("step %d, token %d: %v", step, i, err)
			}
		}
	}
}

// TestImpostor shows the authority that the token pins beside one of its own.
func TestImpostor(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("it got the token")
		}
		_, _ = w.Write(append(stranger.cfg.PKI.ServerCA(), c.cfg.PKI.ServerCA()...))
	}))
	server.TLS = &tls.Config{GetCertificate: stranger.cfg.PKI.ServingCertificate}
	server.StartTLS()
	defer server.Close()
	var address atomic.Value
	address.Store(server.Listener.Addr().String())
	if _, err := join.Join(t.Context(), joining(t, &address, c.token)); err == nil || !strings.Contains(err.Error(), "another certificate authority signed its certificate") {
		t.Errorf("joined an impostor: %v", err)
	}
}

// TestFreshen: only clients that have renewed by now are told to connect again.
func TestFreshen(t *testing.T) {
	c := newCluster(t)
	handler := c.freshen(http.NotFoundHandler())
	soon, late := time.Now().Add(time.Minute), time.Now().Add(300*24*time.Hour)
	shown := func(group string, end time.Time) []*x509.Certificate {
		return []*x509.Certificate{{Subject: pkix.Name{Organization: []string{group}}, NotBefore: end.Add(-365 * 24 * time.Hour), NotAfter: end}}
	}
	for name, test := range map[string]struct {
		chain  []*x509.Certificate
		major  int
		closed bool
	}{
		"a node whose certificate is about to end": {shown(pki.NodeGroup("edge"), soon), 2, true},
		"by HTTP/1.1, each of its own":             {shown(pki.NodeGroup("edge"), soon), 1, false},
		"a node":                                   {shown(pki.NodeGroup("edge"), late), 2, false},
		"a user, whom nobody renews":               {shown("users", soon), 2, false},
		"nobody":                                   {nil, 2, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.ProtoMajor, r.TLS = test.major, &tls.ConnectionState{PeerCertificates: test.chain}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if closed := w.Header().Get("Connection") == "close"; closed != test.closed {
			t.Errorf("%s: closed %t", name, closed)
		}
	}
}
