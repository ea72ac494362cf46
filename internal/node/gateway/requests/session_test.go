package requests

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestSession sees that clients keep their endpoint by cookie and by header, also if the rule
// has several backends.
func TestSession(t *testing.T) {
	session := func(s routing.Session) func(*routing.Rule) {
		return func(r *routing.Rule) { r.Session = &s }
	}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/cookie", "b", "c"), session(routing.Session{Name: "session", Permanent: true, Absolute: time.Hour})),
		with(to("/header", "b", "c"), session(routing.Session{Name: "X-Session", Header: true})),
		with(to("/idle", "b", "c"), session(routing.Session{Name: "session", Idle: time.Hour})),
	}})
	addresses := map[string][]netip.AddrPort{}
	for _, name := range []string{"b1", "b2", "c1", "c2"} {
		w.backend(name, nil)
		addresses[name[:1]] = append(addresses[name[:1]], w.state.Backends[name].Endpoints...)
	}
	w.state.Backends = map[string]*routing.Backend{
		"b": {Name: "b", Endpoints: addresses["b"]}, "c": {Name: "c", Endpoints: addresses["c"]},
	}
	w.set()

	seen := map[string]bool{}
	for range 20 {
		first := w.ask("GET", "/cookie")
		cookies := first.Cookies()
		if len(cookies) != 1 || cookies[0].Path != "/cookie" || !cookies[0].HttpOnly || cookies[0].Secure || cookies[0].MaxAge != 3600 {
			t.Fatalf("got %v", first.Header)
		}
		seen[first.echo.Backend] = true
		for range 5 {
			got := w.ask("GET", "/cookie", "Cookie: session="+cookies[0].Value)
			if got.echo.Backend != first.echo.Backend || len(got.Cookies()) > 0 {
				t.Fatalf("the session of %s went to %s, %v", first.echo.Backend, got.echo.Backend, got.Header)
			}
		}
	}
	if len(seen) < 2 {
		t.Errorf("all sessions are at %v", seen)
	}
	first := w.ask("GET", "/header")
	for range 10 {
		if got := w.ask("GET", "/header", "X-Session: "+first.Header.Get("X-Session")); got.echo.Backend != first.echo.Backend {
			t.Errorf("the session of %s went to %s", first.echo.Backend, got.echo.Backend)
		}
	}
	if got := w.ask("GET", "/idle", "Cookie: session="+w.ask("GET", "/idle").Cookies()[0].Value); len(got.Cookies()) != 1 {
		t.Errorf("a session that ends without use is not renewed: %v", got.Header)
	}
	// What is no session, or one of an endpoint that is gone, begins another one.
	for _, value := range []string{"", "x", "10.0.0.1:80.1.1", "0000000000000000.1.1", "...", strings.Repeat("1", 4000)} {
		if got := w.ask("GET", "/cookie", "Cookie: session="+value); got.StatusCode != 200 || len(got.Cookies()) != 1 {
			t.Errorf("%.20q: got %d, %v", value, got.StatusCode, got.Header)
		}
	}
}

// TestSessionLasts sees how long a session is valid.
func TestSessionLasts(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for _, test := range []struct {
		began, used    time.Duration // before now
		absolute, idle time.Duration
		want           bool
	}{
		{0, 0, 0, 0, true},
		{1000 * time.Hour, 1000 * time.Hour, 0, 0, true},
		{59 * time.Minute, 0, time.Hour, 0, true},
		{61 * time.Minute, 0, time.Hour, 0, false},
		{61 * time.Minute, 59 * time.Minute, 0, time.Hour, true},
		{62 * time.Minute, 61 * time.Minute, 0, time.Hour, false},
		{-time.Hour, 0, 0, 0, false},
	} {
		v := sessionValue{token: "t", began: now.Add(-test.began), used: now.Add(-test.used)}
		parsed, is := parseSession(v.String())
		if !is || parsed != v {
			t.Errorf("%v becomes %v", v, parsed)
		}
		if got := v.valid(&routing.Session{Absolute: test.absolute, Idle: test.idle}, now); got != test.want {
			t.Errorf("%+v: got %t", test, got)
		}
	}
}

// TestSessionOfDeadEndpoint sees that a session moves when its endpoint does not answer.
func TestSessionOfDeadEndpoint(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/", "b"), func(r *routing.Rule) { r.Session = &routing.Session{Name: "session"} }),
	}})
	w.backend("b", nil)
	dead := deadAddress(t)
	w.state.Backends["b"] = &routing.Backend{Name: "b", Endpoints: append([]netip.AddrPort{dead}, w.state.Backends["b"].Endpoints...)}
	w.set()
	v := sessionValue{token: token("b", dead), began: time.Now(), used: time.Now()}
	got := w.ask("GET", "/", "Cookie: session="+v.String())
	if got.StatusCode != http.StatusOK || len(got.Cookies()) != 1 || strings.HasPrefix(got.Cookies()[0].Value, v.token) {
		t.Errorf("got %d, %v", got.StatusCode, got.Header)
	}
}
