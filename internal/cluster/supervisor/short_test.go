package supervisor

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// TestShortToken joins nodes with the secrets of all kinds of tokens.
func TestShortToken(t *testing.T) {
	for name, want := range map[string]string{"server": "", "agents": "", "wrong": "does not accept the token"} {
		c := newCluster(t)
		var address atomic.Value
		address.Store(start(t, c))
		token, err := join.ParseToken(c.token)
		if err != nil {
			t.Fatal(err)
		}
		secret := name
		if name == "server" {
			secret = token.Secret
		}
		cfg := joining(t, &address, secret)
		if _, err := join.Join(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "give the whole token") {
			t.Errorf("%s: got %v", name, err)
		}
		cfg.ShortToken = true
		if _, err := join.Join(t.Context(), cfg); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", name, err, want)
		}
		if _, err := os.Stat(cfg.Dir.TrustedCA()); errors.Is(err, fs.ErrNotExist) != (want == "") {
			t.Errorf("%s: the authority that the node trusted first: %v", name, err)
		}
	}
}

// TestShortTokenPins has an impostor in the place of the server that a node trusted first: at
// the next attempt to join, and when the node has lost its certificates.
func TestShortTokenPins(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the impostor got the token")
		}
		// The impostor shows the right authority too.
		_, _ = w.Write(append(c.cfg.PKI.ServerCA(), stranger.cfg.PKI.ServerCA()...))
	}))
	server.TLS = &tls.Config{GetCertificate: stranger.cfg.PKI.ServingCertificate}
	server.StartTLS()
	defer server.Close()
	var address atomic.Value
	address.Store(start(t, c))
	cfg := joining(t, &address, "wrong")
	cfg.ShortToken = true
	attempt := func(when, at, token, want string) {
		t.Helper()
		address.Store(at)
		cfg.Token = token
		if _, err := join.Join(t.Context(), cfg); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", when, err, want)
		}
	}
	real, posing := address.Load().(string), server.Listener.Addr().String()
	attempt("first", real, "wrong", "does not accept the token")
	attempt("an impostor, before the join", posing, "agents", "another certificate authority signed its certificate")
	attempt("the join", real, "agents", "")
	files, err := os.ReadDir(cfg.Dir.AgentTLS())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), "client-kubelet") {
			if err := os.Remove(cfg.Dir.AgentTLS() + "/" + file.Name()); err != nil {
				t.Fatal(err)
			}
		}
	}
	attempt("an impostor, after the join", posing, "agents", "another certificate authority signed its certificate")
	attempt("the join again", real, "agents", "")
}
