package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/bootstrap"
)

// ask calls a route with a user's secret.
func (c *cluster) ask(method, path, user, secret, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.SetBasicAuth(user, secret)
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, r)
	return w
}

func TestServersJoin(t *testing.T) {
	c := newCluster(t)
	token, err := bootstrap.ParseToken(c.token)
	if err != nil {
		t.Fatal(err)
	}
	if w := c.ask("GET", bootstrap.SecretsPath, token.User, token.Secret, ""); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "restart it with --cluster-init") {
		t.Errorf("over SQLite: %d %s", w.Code, w.Body)
	}
	if w := c.ask("POST", bootstrap.MemberPath, token.User, token.Secret, "{}"); w.Code != http.StatusForbidden {
		t.Errorf("over SQLite: %d %s", w.Code, w.Body)
	}

	var outcome error
	c.cfg.Admit = func(_ context.Context, r bootstrap.MemberRequest) (bootstrap.MemberResponse, error) {
		return bootstrap.MemberResponse{InitialCluster: r.Name + "=" + r.PeerURL}, outcome
	}
	for _, stranger := range [][2]string{{"server", "wrong"}, {"server", ""}, {"node", "agents"}, {"", token.Secret}} {
		for _, route := range [][2]string{{"GET", bootstrap.SecretsPath}, {"POST", bootstrap.MemberPath}} {
			if w := c.ask(route[0], route[1], stranger[0], stranger[1], "{}"); w.Code != http.StatusUnauthorized {
				t.Errorf("%s as %v: %d %s", route[1], stranger, w.Code, w.Body)
			}
		}
	}

	w := c.ask("GET", bootstrap.SecretsPath, token.User, token.Secret, "")
	if strings.Contains(w.Body.String(), "PRIVATE KEY") {
		t.Error("keys can be read")
	}
	var sealed bootstrap.Sealed
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
		{bootstrap.NotNow("another is joining"), "{}", http.StatusServiceUnavailable, "another is joining"},
		{errors.New("the name is taken"), "{}", http.StatusForbidden, "the name is taken"},
		{nil, "nonsense", http.StatusBadRequest, ""},
	} {
		outcome = test.outcome
		if w := c.ask("POST", bootstrap.MemberPath, token.User, token.Secret, test.body); w.Code != test.code || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%v: %d %s", test.outcome, w.Code, w.Body)
		}
	}
}
