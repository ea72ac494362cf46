package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// ask calls a route with a user and its secret.
func (c *cluster) ask(method, path, user, secret, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.SetBasicAuth(user, secret)
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, r)
	return w
}

// member is a fake Etcd.
type member struct {
	outcome error
	usable  bool
}

func (m *member) Admit(_ context.Context, r join.MemberRequest) (join.MemberResponse, error) {
	return join.MemberResponse{InitialCluster: r.Name + "=" + r.PeerURL}, m.outcome
}

func (m *member) Members() ([]string, bool) { return []string{"192.0.2.1:6443"}, m.usable }

func (*member) ServeHTTP(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// Only servers reach etcd, with a certificate that no node has.
func TestEtcdClients(t *testing.T) {
	c := newCluster(t)
	certificates, err := pki.EnsureServer(pki.ServerOptions{Dir: c.cfg.Dir, NodeName: "server", ClusterDomain: "cluster.local", Etcd: true})
	if err != nil {
		t.Fatal(err)
	}
	c.cfg.PKI = certificates
	etcd := &member{usable: true}
	call := func(method, path string, state *tls.ConnectionState) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, nil)
		r.TLS = state
		w := httptest.NewRecorder()
		newMux(c.routes()).ServeHTTP(w, r)
		return w
	}
	const kv = "/etcdserverpb.KV/Range"
	server := shows(t, certificates.EtcdClientTLS())
	if w := call("POST", kv, server); w.Code != http.StatusNotFound {
		t.Errorf("etcd's API on a server without etcd: got %d, want 404", w.Code)
	}
	c.cfg.Etcd = etcd
	for name, state := range map[string]*tls.ConnectionState{
		"nobody": {}, "node": shows(t, certificates.NodeTLS()), "user": shows(t, certificates.UserTLS("root", "system:masters")),
	} {
		for method, path := range map[string]string{"POST": kv, "GET": join.EtcdPath} {
			if w := call(method, path, state); w.Code != http.StatusUnauthorized {
				t.Errorf("%s as %s: %d", path, name, w.Code)
			}
		}
	}
	if w := call("POST", kv, server); w.Code != http.StatusTeapot {
		t.Errorf("etcd did not answer: %d", w.Code)
	}
	for _, code := range []int{http.StatusOK, http.StatusServiceUnavailable} {
		if w := call("GET", join.EtcdPath, server); w.Code != code || !strings.Contains(w.Body.String(), `{"servers":["192.0.2.1:6443"]}`) {
			t.Errorf("got %d %s, want %d", w.Code, w.Body, code)
		}
		etcd.usable = false
	}
}

// shows returns the state of a connection on which a client has shown its certificate.
func shows(t *testing.T, config *tls.Config) *tls.ConnectionState {
	t.Helper()
	pair, err := config.GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
}

func TestServersJoin(t *testing.T) {
	c := newCluster(t)
	token, err := join.ParseToken(c.token)
	if err != nil {
		t.Fatal(err)
	}
	if w := c.ask("GET", join.SecretsPath, token.User, token.Secret, ""); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "restart it with --cluster-init") {
		t.Errorf("secrets of a server with SQLite: got %d %s, want 403 and what to do", w.Code, w.Body)
	}
	if w := c.ask("POST", join.MemberPath, token.User, token.Secret, "{}"); w.Code != http.StatusForbidden {
		t.Errorf("join as a member of a server with SQLite: got %d %s, want 403", w.Code, w.Body)
	}

	member := &member{usable: true}
	c.cfg.Etcd = member
	c.mux = newMux(c.routes())
	for _, stranger := range [][2]string{{"server", "wrong"}, {"server", ""}, {"node", "agents"}, {"", token.Secret}} {
		for _, route := range [][2]string{{"GET", join.SecretsPath}, {"POST", join.MemberPath}} {
			if w := c.ask(route[0], route[1], stranger[0], stranger[1], "{}"); w.Code != http.StatusUnauthorized {
				t.Errorf("%s as %v: %d %s", route[1], stranger, w.Code, w.Body)
			}
		}
	}

	w := c.ask("GET", join.SecretsPath, token.User, token.Secret, "")
	if strings.Contains(w.Body.String(), "PRIVATE KEY") {
		t.Error("keys can be read")
	}
	var sealed join.Sealed
	if err := json.Unmarshal(w.Body.Bytes(), &sealed); err != nil {
		t.Fatal(err)
	}
	secrets, err := sealed.Open(token.Secret)
	if err != nil || !bytes.Equal(secrets["server-ca.crt"], c.cfg.PKI.ServerCA()) || len(secrets["service.key"]) == 0 {
		t.Errorf("got %d secrets, %v", len(secrets), err)
	}

	for _, test := range []struct {
		outcome error
		body    string
		code    int
		want    string
	}{
		{nil, `{"name": "two-1", "peerURL": "https://192.0.2.2:2380"}`, http.StatusOK, "two-1=https://192.0.2.2:2380"},
		{join.NotNow("another is joining"), "{}", http.StatusServiceUnavailable, "another is joining"},
		{errors.New("the name is taken"), "{}", http.StatusForbidden, "the name is taken"},
		{nil, "nonsense", http.StatusBadRequest, ""},
	} {
		member.outcome = test.outcome
		if w := c.ask("POST", join.MemberPath, token.User, token.Secret, test.body); w.Code != test.code || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%v: %d %s", test.outcome, w.Code, w.Body)
		}
	}
}
