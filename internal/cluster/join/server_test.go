package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// other is a server whose cluster can be joined.
type other struct {
	// ahead is how far the server's clock is ahead.
	ahead atomic.Int64
	dir   datadir.Dir
	token string
	dial  Dial
}

// newOther starts such a server, with the secrets of its PKI.
func newOther(t *testing.T) *other {
	t.Helper()
	o := &other{dir: newDir(t)}
	certificates, err := pki.EnsureServer(pki.ServerOptions{Dir: o.dir, NodeName: "one", ClusterDomain: "cluster.local", Etcd: true})
	if err != nil {
		t.Fatal(err)
	}
	if o.token, err = EnsureToken(o.dir, "", certificates.ServerCA()); err != nil {
		t.Fatal(err)
	}
	authorized := func(answer func() (any, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			user, secret, _ := r.BasicAuth()
			if !CheckSecret(o.dir, user, secret) {
				http.Error(w, "", http.StatusUnauthorized)
				return
			}
			body, err := answer()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			_ = json.NewEncoder(w).Encode(body)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc(CACertsPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(certificates.ServerCA()) })
	mux.HandleFunc(ClusterPath, authorized(func() (any, error) {
		return Settings{Version: version.Version, Cluster: config.Default().Cluster}, nil
	}))
	mux.HandleFunc(SecretsPath, authorized(func() (any, error) {
		secrets, err := pki.Secrets(o.dir)
		if err != nil {
			return nil, err
		}
		token, err := ParseToken(o.token)
		if err != nil {
			return nil, err
		}
		return Seal(token.Secret, secrets)
	}))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(time.Duration(o.ahead.Load())).UTC().Format(http.TimeFormat))
		mux.ServeHTTP(w, r)
	}))
	server.TLS = &tls.Config{GetCertificate: certificates.ServingCertificate}
	server.StartTLS()
	t.Cleanup(server.Close)
	o.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}
	return o
}

// config returns the configuration of a joining server with the data directory dir.
func (o *other) config(dir datadir.Dir) ServerConfig {
	return ServerConfig{Server: "pi:6443", Dial: o.dial, Token: o.token, Dir: dir, Cluster: config.Default().Cluster}
}

func TestJoinServer(t *testing.T) {
	o := newOther(t)
	dir := newDir(t)
	if _, err := JoinServer(t.Context(), o.config(dir), false); err != nil {
		t.Fatal(err)
	}
	want, err := pki.Secrets(o.dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pki.Secrets(dir)
	if err != nil || len(got) != len(want) || len(got) != 12 {
		t.Fatalf("got %d secrets of %d, %v", len(got), len(want), err)
	}
	for name, content := range want {
		if !bytes.Equal(got[name], content) {
			t.Errorf("%s is another", name)
		}
	}
	if info, err := os.Stat(filepath.Join(dir.ServerTLS(), "service.key")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key has mode %v, %v", info.Mode(), err)
	}
	// A join that was interrupted is repeated.
	if _, err := JoinServer(t.Context(), o.config(dir), false); err != nil {
		t.Errorf("join for the second time: %v", err)
	}

	// At a later start, the configuration may have no token.
	if err := os.WriteFile(dir.ServerToken(), []byte(o.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	later := o.config(dir)
	later.Token = ""
	if _, err := JoinServer(t.Context(), later, true); err != nil {
		t.Errorf("later: %v", err)
	}
	down := later
	down.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, &net.OpError{Op: "dial"} }
	if _, err := JoinServer(t.Context(), down, true); err != nil {
		t.Errorf("later, with the other server down: %v", err)
	}
	settings := later
	settings.Cluster.ClusterDomain = "example.org"
	if _, err := JoinServer(t.Context(), settings, true); err == nil || !strings.Contains(err.Error(), "cluster-domain is example.org here") {
		t.Errorf("later, with another domain: %v", err)
	}
	key := filepath.Join(dir.ServerTLS(), "service.key")
	if err := os.WriteFile(key, []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := JoinServer(t.Context(), later, true); err == nil || !strings.Contains(err.Error(), "service.key") || strings.Contains(err.Error(), "client-ca") {
		t.Errorf("later, with another key: %v", err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := JoinServer(t.Context(), later, true); err != nil {
		t.Errorf("later, without the key: %v", err)
	}
	if text, err := os.ReadFile(key); err != nil || !bytes.Equal(text, want["service.key"]) {
		t.Errorf("the key did not come back: %v", err)
	}
}

// A server whose clock differs too much waits until the clock is set. One that has joined
// before only warns.
func TestJoinServerClock(t *testing.T) {
	hook := logtest.NewLocal(logrus.StandardLogger())
	defer hook.Reset()
	said := func(text string) bool {
		return slices.ContainsFunc(hook.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, text) })
	}
	for ahead, want := range map[time.Duration]string{
		10 * time.Minute:    " ahead of this machine's",
		-3 * 24 * time.Hour: " behind this machine's",
		30 * time.Second:    "",
	} {
		o := newOther(t)
		o.ahead.Store(int64(ahead))
		ctx, cancel := context.WithCancel(t.Context())
		dir := newDir(t)
		joined := make(chan error, 1)
		go func() {
			_, err := JoinServer(ctx, o.config(dir), false)
			joined <- err
		}()
		if want != "" {
			for !said(want) {
				time.Sleep(time.Millisecond)
			}
			if secrets, err := pki.Secrets(dir); err != nil || len(secrets) > 0 {
				t.Errorf("got %d secrets, %v after a refused join, want none", len(secrets), err)
			}
			o.ahead.Store(0)
		}
		if err := <-joined; err != nil {
			t.Errorf("%s ahead: %v", ahead, err)
		}
		hook.Reset()
		if err := os.WriteFile(dir.ServerToken(), []byte(o.token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		o.ahead.Store(int64(ahead))
		if _, err := JoinServer(ctx, o.config(dir), true); err != nil || want == "" && said("this machine's") {
			t.Errorf("%s ahead, later: %v", ahead, err)
		}
		cancel()
		hook.Reset()
	}
}

func TestJoinServerRefused(t *testing.T) {
	o, stranger := newOther(t), newOther(t)
	secret := o.token[strings.Index(o.token, "::"):]
	for name, test := range map[string]struct {
		change func(*ServerConfig)
		member bool
		want   string
	}{
		"no token":           {change: func(c *ServerConfig) { c.Token = "" }, want: "a server needs the cluster's token"},
		"bare token":         {change: func(c *ServerConfig) { c.Token = "secret" }, want: "give the whole token"},
		"agent token":        {change: func(c *ServerConfig) { c.Token = strings.Replace(c.Token, "::server:", "::node:", 1) }, want: "this token is for agents"},
		"token that ends":    {change: func(c *ServerConfig) { c.Token = strings.Replace(c.Token, secret, "::abcdef.0123456789abcdef", 1) }, want: "this token is for agents"},
		"wrong token":        {change: func(c *ServerConfig) { c.Token += "0" }, want: "does not accept the token"},
		"other cluster":      {change: func(c *ServerConfig) { c.Dial = stranger.dial }, want: "is not of the token's cluster"},
		"cluster of its own": {change: func(c *ServerConfig) { c.Dir = stranger.dir }, want: "this server has a cluster of its own"},
		"member of another":  {change: func(c *ServerConfig) { c.Dir = stranger.dir }, member: true, want: "this server has a cluster of its own"},
		"SQLite": {change: func(c *ServerConfig) {
			c.Dir = o.dir
			if err := os.MkdirAll(c.Dir.ServerDB(), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(c.Dir.SQLite(), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, want: "this server has a cluster of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := o.config(newDir(t))
			test.change(&cfg)
			if _, err := JoinServer(t.Context(), cfg, test.member); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}
