package requests

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestForwarded sees that backends learn where requests come from, and that only trusted proxies
// may say it.
func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, test := range []struct {
		peer   string
		tls    bool
		sent   map[string]string
		want   map[string]string
		client string
	}{
		{
			"192.0.2.1:1234", false, nil,
			map[string]string{
				"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "example.org:81", "X-Forwarded-Port": "80",
				"X-Real-Ip": "192.0.2.1",
			}, "192.0.2.1",
		},
		{
			"192.0.2.1:1234", true,
			map[string]string{
				"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil", "X-Forwarded-Port": "1", "X-Real-Ip": "6.6.6.6",
				"Forwarded": "for=6.6.6.6", "X-Forwarded-Prefix": "/x", "X_forwarded_for": "6.6.6.6", "X_other": "kept",
			},
			map[string]string{
				"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "example.org:81", "X-Forwarded-Port": "80",
				"X-Real-Ip": "192.0.2.1", "Forwarded": "", "X-Forwarded-Prefix": "", "X_forwarded_for": "", "X_other": "kept",
			}, "192.0.2.1",
		},
		{
			"10.1.2.3:1234", false,
			map[string]string{
				"X-Forwarded-For": "6.6.6.6, 192.0.2.7, 10.9.9.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "public.example", "X-Forwarded-Port": "443",
				"Forwarded": "for=192.0.2.7",
			},
			map[string]string{
				"X-Forwarded-For": "6.6.6.6, 192.0.2.7, 10.9.9.9, 10.1.2.3", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "public.example",
				"X-Forwarded-Port": "443", "X-Real-Ip": "192.0.2.7", "Forwarded": "for=192.0.2.7",
			}, "192.0.2.7",
		},
		{
			"[::ffff:10.1.2.3]:1234", false, map[string]string{"X-Forwarded-For": "unknown, 10.0.0.9", "X-Forwarded-Proto": "gopher"},
			map[string]string{"X-Real-Ip": "10.0.0.9", "X-Forwarded-Proto": "http", "X-Forwarded-For": "unknown, 10.0.0.9, 10.1.2.3"}, "10.0.0.9",
		},
		{"[fd00::1]:1234", false, map[string]string{"X-Forwarded-For": "[2001:db8::1]:99"}, map[string]string{"X-Real-Ip": "2001:db8::1"}, "2001:db8::1"},
		{"[fd00::1]:1234", false, nil, map[string]string{"X-Real-Ip": "fd00::1", "X-Forwarded-For": "fd00::1"}, "fd00::1"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host, r.RemoteAddr = "example.org:81", test.peer
		if test.tls {
			r = secured(r, "", "")
		}
		for name, value := range test.sent {
			r.Header[name] = []string{value}
		}
		c := clientOf(r, trusted)
		h := r.Header.Clone()
		c.forwarded(h, r.Host, "80")
		for name, want := range test.want {
			if got := strings.Join(h[name], "|"); got != want {
				t.Errorf("%s, %v: got %s %q, want %q", test.peer, test.sent, name, got, want)
			}
		}
		if c.address.String() != test.client {
			t.Errorf("%s, %v: the client is %s", test.peer, test.sent, c.address)
		}
	}
}

func TestAuth(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/", "b"), func(r *routing.Rule) {
			r.Auth = &routing.BasicAuth{Realm: "the \"realm\"\r\n", Users: "user:{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=\n"}
		}),
	}})
	w.backend("b", nil)
	for credentials, want := range map[string]int{
		"X: y": 401,
		"Authorization: Basic dXNlcjpteVBhc3N3b3Jk": 200, // user:myPassword
		"Authorization: Basic dXNlcjpvdGhlcg==":     401,
		"Authorization: Basic nonsense":             401,
		"Authorization: Bearer x":                   401,
	} {
		got := w.ask("GET", "/", credentials)
		if got.StatusCode != want {
			t.Errorf("%s: got %d", credentials, got.StatusCode)
		}
		if realm := got.Header.Get("WWW-Authenticate"); want == 401 && realm != `Basic realm="the  realm   ", charset="UTF-8"` {
			t.Errorf("got %q", realm)
		}
	}
}
