package requests

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// TestListeners has the cases of the conformance tests GatewayHTTPListenerIsolation: each
// listener has a route for everything, and a path of its own.
func TestListeners(t *testing.T) {
	w := newWorld(t)
	w.backend("b", nil)
	socket := &routing.Socket{PublicPort: 80}
	for path, hostname := range map[string]string{
		"/empty": "", "/example": "*.example.com", "/foo": "*.foo.example.com", "/abc": "abc.foo.example.com",
	} {
		route := &routing.Route{
			Name: path, Rules: []routing.Rule{to(path, "b")},
			Hostnames: []string{"bar.com", "*.example.com", "*.foo.example.com", "abc.foo.example.com"},
		}
		w.state.Routes[route.Name] = route
		socket.Listeners = append(socket.Listeners, routing.Listener{
			Name: "listener" + path, Protocol: routing.HTTP, Hostname: hostname, Routes: []string{route.Name},
		})
	}
	w.state.Sockets = map[string]*routing.Socket{"web": socket}
	w.set()
	for host, mine := range map[string]string{
		"bar.com": "/empty", "bar.example.com": "/example", "bar.foo.example.com": "/foo", "abc.foo.example.com": "/abc",
		"BAR.com:8080": "/empty", "example.com": "none", "foo.example.com.": "/example",
	} {
		for _, path := range []string{"/empty", "/example", "/foo", "/abc"} {
			want := http.StatusNotFound
			if path == mine {
				want = http.StatusOK
			}
			if got := w.ask("GET", path, "Host: "+host); got.StatusCode != want {
				t.Errorf("%s%s: got %d, want %d", host, path, got.StatusCode, want)
			}
		}
	}
}

// TestMisdirected has the cases of the conformance test
// HTTPRouteHTTPSListenerDetectMisdirectedRequests, and those of listeners that want certificates of
// clients, or that are none of HTTPS.
func TestMisdirected(t *testing.T) {
	w := newWorld(t)
	socket := &routing.Socket{PublicPort: 443, Reserved: []string{"reserved.wildcard.org"}}
	for i, hostname := range []string{"", "second-example.org", "*.wildcard.org", "fourth-example.wildcard.org", "strict.org", "lax.org", "tls.wildcard.org", "reserved.wildcard.org"} {
		name := fmt.Sprint(i + 1)
		w.backend(name, nil)
		route := &routing.Route{Name: name, Rules: []routing.Rule{to("/", name)}}
		if hostname == "" {
			route.Hostnames = []string{"example.org"}
		}
		w.state.Routes[name] = route
		l := routing.Listener{Name: name, Protocol: routing.HTTPS, Hostname: hostname, Routes: []string{name}}
		switch hostname {
		case "strict.org":
			l.ClientAuthorities = "ours"
		case "lax.org":
			l.ClientAuthorities, l.AllowInsecureFallback = "ours", true
		case "tls.wildcard.org":
			l.Protocol = routing.TLSPassthrough
		}
		socket.Listeners = append(socket.Listeners, l)
	}
	w.state.Sockets = map[string]*routing.Socket{"web": socket}
	w.set()
	for _, test := range []struct {
		serverName, authorities, host string
		status                        int
		backend                       string
	}{
		{"example.org", "", "example.org", 200, "1"},
		{"example.org", "", "second-example.org", 421, ""},
		{"example.org", "", "unknown-example.org", 404, ""},
		{"second-example.org", "", "second-example.org", 200, "2"},
		{"second-example.org", "", "example.org", 421, ""},
		{"second-example.org", "", "unknown-example.org", 421, ""},
		{"third-example.wildcard.org", "", "third-example.wildcard.org", 200, "3"},
		{"third-example.wildcard.org", "", "fith-example.wildcard.org", 200, "3"},
		{"third-example.wildcard.org", "", "fourth-example.wildcard.org", 421, ""},
		{"third-example.wildcard.org", "", "second-example.org", 421, ""},
		{"third-example.wildcard.org", "", "unknown-example.org", 421, ""},
		{"fourth-example.wildcard.org", "", "fourth-example.wildcard.org", 200, "4"},
		{"fourth-example.wildcard.org", "", "fith-example.wildcard.org", 421, ""},
		{"unknown-example.org", "", "example.org", 200, "1"},
		{"unknown-example.org", "", "unknown-example.org", 404, ""},
		{"", "", "second-example.org", 421, ""},
		{"", "", "example.org", 200, "1"},
		{"EXAMPLE.org", "", "Example.ORG:443", 200, "1"},
		{"strict.org", "ours", "strict.org", 200, "5"},
		{"strict.org", "ours", "STRICT.org.:443", 200, "5"},
		// The listener wanted nothing, or other authorities, when the client shook hands.
		{"strict.org", "", "strict.org", 421, ""},
		{"strict.org", "theirs", "strict.org", 421, ""},
		// What the client has shown to another listener counts for nothing.
		{"example.org", "ours", "strict.org", 421, ""},
		{"lax.org", "", "strict.org", 421, ""},
		{"lax.org", "", "lax.org", 200, "6"},
		{"strict.org", "ours", "lax.org", 421, ""},
		// No request belongs to a listener that is not one of HTTPS.
		{"third-example.wildcard.org", "", "tls.wildcard.org", 421, ""},
		{"tls.wildcard.org", "", "tls.wildcard.org", 421, ""},
		{"third-example.wildcard.org", "", "reserved.wildcard.org", 421, ""},
		{"reserved.wildcard.org", "", "reserved.wildcard.org", 421, ""},
		// No DNS names.
		{"strict.org", "ours", ".strict.org", 400, ""},
		{"third-example.wildcard.org", "", ".wildcard.org", 400, ""},
		{"third-example.wildcard.org", "", "a..wildcard.org", 400, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = test.host
		got := w.record(secured(r, test.serverName, test.authorities))
		if got.Code != test.status || got.Header().Get("X-Backend") != test.backend {
			t.Errorf("%s for %s: got %d of %q, want %d of %q", test.host, test.serverName, got.Code, got.Header().Get("X-Backend"), test.status, test.backend)
		}
	}
	// A request with TLS of whose handshake nothing is known belongs to no listener.
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Host, r.TLS = "example.org", &tls.ConnectionState{ServerName: "example.org"}
	if got := w.record(r); got.Code != http.StatusMisdirectedRequest {
		t.Errorf("without a handshake: got %d", got.Code)
	}
}

// TestWildcards sees that the wildcard of an Ingress stands for one label, and that of the Gateway
// API for several. What the routes of a name leave over, those of less specific names get.
func TestWildcards(t *testing.T) {
	w := newWorld(t)
	l := &w.state.Sockets["web"].Listeners[0]
	for name, single := range map[string]bool{"ingress": true, "gateway": false} {
		for i, hostname := range []string{"a.NAME.org", "*.NAME.org", "*.b.NAME.org", ""} {
			backend := fmt.Sprint(name, i)
			w.backend(backend, nil)
			r := &routing.Route{Name: backend, SingleLabel: single, Rules: []routing.Rule{to("/"+fmt.Sprint(i), backend)}}
			if hostname != "" {
				r.Hostnames = []string{strings.ReplaceAll(hostname, "NAME", name)}
				r.Rules = append(r.Rules, to("/all/"+name, backend))
			}
			w.add(r, l)
		}
	}
	w.set()
	for asked, want := range map[string]string{
		"a.ingress.org/0": "ingress0", "a.ingress.org/1": "ingress1", "a.ingress.org/3": "gateway3", "a.ingress.org/2": "",
		"a.ingress.org/all/ingress": "ingress0", "x.ingress.org/all/ingress": "ingress1", "x.b.ingress.org/all/ingress": "ingress2",
		"b.ingress.org/1": "ingress1", "x.b.ingress.org/1": "", "x.b.ingress.org/2": "ingress2", "y.x.b.ingress.org/2": "",
		"y.x.b.ingress.org/3": "gateway3", "ingress.org/1": "",
		"a.gateway.org/1": "gateway1", "x.b.gateway.org/1": "gateway1", "x.b.gateway.org/2": "gateway2", "y.x.b.gateway.org/2": "gateway2",
		"y.x.gateway.org/all/gateway": "gateway1", "y.x.b.gateway.org/all/gateway": "gateway2", "gateway.org/1": "",
	} {
		host, path, _ := strings.Cut(asked, "/")
		if got := w.ask("GET", "/"+path, "Host: "+host); got.echo.Backend != want {
			t.Errorf("%s: got %q (%d), want %q", asked, got.echo.Backend, got.StatusCode, want)
		}
	}
}

// TestSameHostname sees that listeners of two Gateways with the same host name serve the routes
// of both.
func TestSameHostname(t *testing.T) {
	w := newWorld(t)
	w.backend("b", nil)
	listeners := []routing.Listener{
		{Name: "first", Protocol: routing.HTTP, Hostname: "example.org"},
		{Name: "second", Protocol: routing.HTTP, Hostname: "EXAMPLE.org"},
	}
	w.add(&routing.Route{Name: "1", Rules: []routing.Rule{to("/1", "b")}}, &listeners[0])
	w.add(&routing.Route{Name: "2", Rules: []routing.Rule{to("/2", "b")}}, &listeners[1])
	w.state.Sockets = map[string]*routing.Socket{"web": {PublicPort: 80, Listeners: listeners}}
	w.set()
	for path, want := range map[string]int{"/1": 200, "/2": 200, "/3": 404} {
		if got := w.ask("GET", path); got.StatusCode != want {
			t.Errorf("%s: got %d", path, got.StatusCode)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, entry := range w.entries {
		if entry.Listener != "first" {
			t.Errorf("%s was served by %q", entry.Path, entry.Listener)
		}
	}
}

// TestPrecedence has cases of the conformance tests HTTPRoutePathMatchOrder,
// HTTPRouteHeaderMatching, HTTPRouteMethodMatching and HTTPRouteQueryParamMatching, and of
// GRPCRouteHeaderMatching.
func TestPrecedence(t *testing.T) {
	exact := func(path string) routing.Match { return routing.Match{PathType: routing.Exact, Path: path} }
	prefix := func(path string) routing.Match { return routing.Match{PathType: routing.PathPrefix, Path: path} }
	header := func(m routing.Match, pairs ...string) routing.Match {
		for i := 0; i < len(pairs); i += 2 {
			m.Headers = append(m.Headers, routing.Field{Type: routing.Exact, Name: pairs[i], Value: pairs[i+1]})
		}
		return m
	}
	query := func(m routing.Match, name, value string) routing.Match {
		m.Query = append(m.Query, routing.Field{Type: routing.Exact, Name: name, Value: value})
		return m
	}
	method := func(m routing.Match, name string) routing.Match {
		m.Method = name
		return m
	}
	expression := func(path string) routing.Match { return routing.Match{PathType: routing.Regexp, Path: path} }
	rules := func(of ...routing.Match) (all []routing.Rule) {
		for i, m := range of {
			all = append(all, routing.Rule{
				Matches: []routing.Match{m}, Split: routing.Split{Targets: []routing.Target{{Backend: fmt.Sprint(i), Weight: 1}}},
			})
		}
		return all
	}
	grpc := func(all []routing.Rule) []routing.Rule {
		for i := range all {
			all[i].GRPC = true
		}
		return all
	}
	for _, test := range []struct {
		name  string
		rules []routing.Rule
		asked map[string]string // "METHOD path header value": index of the rule, or ""
	}{
		{
			"path", rules(prefix("/match"), prefix("/match/prefix/one"), exact("/match/exact"), exact("/match/exact/one"), prefix("/match/any")),
			map[string]string{
				"GET /match": "0", "GET /match/": "0", "GET /matched": "", "GET /match/exact": "2", "GET /match/exact/": "0",
				"GET /match/exact/one": "3", "GET /match/prefix/one/any": "1", "GET /match/prefix/any": "0", "GET /match/any": "4",
				"GET /x/../match/any": "4", "GET /match%2Fany": "", "GET //match//exact": "2",
			},
		},
		{
			"headers", rules(header(prefix("/"), "version", "one"), header(prefix("/"), "version", "two"),
				header(prefix("/"), "version", "two", "color", "orange"), header(prefix("/"), "color", "blue")),
			map[string]string{
				"GET / version one": "0", "GET / Version two": "1", "GET / version two color orange": "2",
				"GET / version two color blue": "1", "GET / color blue": "3", "GET / color orange": "", "GET /": "",
				"GET / version one version two": "",
			},
		},
		{
			"method", rules(method(prefix("/"), "POST"), prefix("/path"), header(prefix("/"), "version", "four"), method(prefix("/path5"), "PATCH"), prefix("/path5")),
			map[string]string{
				"POST /": "0", "GET /": "", "GET /path": "1", "POST /path": "1", "POST / version four": "0", "GET / version four": "2",
				"PATCH /path5": "3", "GET /path5": "4",
			},
		},
		{
			"query", rules(query(prefix("/"), "animal", "whale"), query(query(prefix("/"), "animal", "dolphin"), "color", "blue"),
				query(prefix("/"), "animal", "dolphin"), query(prefix("/"), "ANIMAL", "Whale"), prefix("/path5"), query(prefix("/"), "animal", "hydra"),
				header(prefix("/"), "version", "four")),
			map[string]string{
				"GET /?animal=whale": "0", "GET /?animal=dolphin": "2", "GET /?animal=dolphin&color=blue": "1", "GET /?ANIMAL=Whale": "3",
				"GET /?animal=whale&x=y": "0", "GET /?color=blue": "", "GET /?animal=whaledolphin": "", "GET /path5?animal=hydra": "4",
				"GET /?animal=hydra version four": "6", "GET /?animal=whale&animal=dolphin": "0", "GET /?animal=dog&animal=whale": "",
			},
		},
		{
			"expressions", rules(prefix("/"), prefix("/a"), expression("/a/[0-9]+"), exact("/a/1"), expression("/a/[0-9]+/long.*")),
			map[string]string{"GET /a/1": "3", "GET /a/2": "2", "GET /a/2x": "1", "GET /b/a/2": "0", "GET /a/2/longer": "4"},
		},
		{
			"grpc", grpc(rules(exact("/s/Echo"), prefix("/s"), expression("/[^/]+/Method"), prefix("/"))),
			map[string]string{"POST /s/Echo": "0", "POST /s/Method": "1", "POST /t/Method": "2", "POST /t/Echo": "3"},
		},
		{
			"faulty", rules(expression("["), header(prefix("/"), "a", "b"), prefix("/"), expression("(/a{1000}){1000}"), expression("/a)|(/b")),
			map[string]string{"GET /[": "2", "GET /b": "2"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := compileRoute(&routing.Route{Name: "r", Rules: test.rules}, func(string) *backend { return nil }, nil)
			l := &listener{}
			l.attach(r)
			for of := range l.routes.All() {
				of.sort()
			}
			for asked, want := range test.asked {
				words := strings.Fields(asked)
				target, rawQuery, _ := strings.Cut(words[1], "?")
				parsed, err := parsePath(target)
				if err != nil {
					t.Fatal(err)
				}
				q := question{path: parsed.match, method: words[0], header: http.Header{}, rawQuery: rawQuery}
				for i := 2; i < len(words); i += 2 {
					q.header.Add(words[i], words[i+1])
				}
				got := ""
				if m := l.find(hosts.Name{}, &q); m != nil {
					for i := range r.rules {
						if r.rules[i] == m.rule {
							got = fmt.Sprint(i)
						}
					}
				}
				if got != want {
					t.Errorf("%s: got rule %q, want %q", asked, got, want)
				}
			}
		})
	}
}

// TestAge sees that of equal routes the older one wins, and then the name.
func TestAge(t *testing.T) {
	w := newWorld(t)
	at := time.Unix(1000, 0)
	for name, created := range map[string]time.Time{"a": at.Add(time.Second), "b": at, "c": at} {
		w.backend(name, nil)
		w.add(&routing.Route{Name: name, Created: created, Rules: []routing.Rule{to("/", name)}}, &w.state.Sockets["web"].Listeners[0])
	}
	w.set()
	if got := w.ask("GET", "/"); got.echo.Backend != "b" {
		t.Errorf("%s wins", got.echo.Backend)
	}
}

func TestChallenge(t *testing.T) {
	w := newWorld(t)
	w.backend("b", nil)
	l := &w.state.Sockets["web"].Listeners[0]
	l.Challenges = map[string]string{"token": "token.key"}
	w.add(&routing.Route{Name: "r", Rules: []routing.Rule{with(to("/", "b"), func(r *routing.Rule) {
		r.Filters = []routing.Filter{{Redirect: &routing.Redirect{Scheme: "https", Code: 301}}}
	})}}, l)
	w.set()
	if got := w.ask("GET", "/.well-known/acme-challenge/token"); got.StatusCode != 200 || got.text != "token.key" {
		t.Errorf("got %d, %q", got.StatusCode, got.text)
	}
	for _, path := range []string{"/.well-known/acme-challenge/other", "/.well-known/acme-challenge/"} {
		if got := w.ask("GET", path); got.StatusCode != 301 {
			t.Errorf("%s: got %d", path, got.StatusCode)
		}
	}
}

// TestRefused has requests that no backend may see.
func TestRefused(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	var served []string
	w.backend("b", func(_ http.ResponseWriter, r *http.Request) { served = append(served, r.RequestURI) })
	for text, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                                                              200,
		"GET http://b/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                                                     200,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n": 200,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n":                                 501,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":             501,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\n1234":                                    400,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\n1234":                                                        400,
		"GET / HTTP/1.1\r\nHost : a\r\n\r\n":                                                                                  400,
		"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\nConnection: close\r\n\r\n":                                                200, // folded lines are joined
		"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n":                                                                        400,
		"GET / HTTP/1.1\r\n\r\n":                                                          400,
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n":                                             400,
		"GET / HTTP/1.1\r\nHost: user@a\r\nConnection: close\r\n\r\n":                     400,
		"GET /..%2fb HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                    400,
		"GET /%00 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                       400,
		"GET /a\\b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                      400,
		"GET /a#b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                       400,
		"GET /?a#b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n":                      400,
		"CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\nConnection: close\r\n\r\n":              405,
		"GET /a HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n":                                     400,
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: \x01\r\n\r\n": 400,
	} {
		served = nil
		got := w.raw(text)
		if got != want || (got == 200) != (len(served) == 1) {
			t.Errorf("%q: got %d, want %d; backends got %q", text, got, want, served)
		}
	}
}

// TestUnchanged sees that what has not changed is not compiled again, and that the rest is.
func TestUnchanged(t *testing.T) {
	requests := New(Config{})
	defer requests.Close()
	state := large(3, true)
	requests.Set(state)
	first := requests.table.Load()

	next := *state
	next.Backends = map[string]*routing.Backend{"b": {Name: "b"}}
	requests.Set(&next)
	if second := requests.table.Load(); second.sockets["web"] != first.sockets["web"] || second.routes["route-0001"] != first.routes["route-0001"] {
		t.Error("another endpoint compiles routes")
	}

	changed := *state.Routes["route-0001"]
	state.Routes["route-0001"] = &changed
	requests.Set(state)
	third := requests.table.Load()
	if third.routes["route-0001"] == first.routes["route-0001"] || third.sockets["web"] == first.sockets["web"] {
		t.Error("a route that changed is not compiled")
	}
	if third.routes["route-0002"] != first.routes["route-0002"] || third.routes["route-0001"].stats != first.routes["route-0001"].stats {
		t.Error("a route that did not change is compiled, or one that changed has lost its counts")
	}

	delete(state.Routes, "route-0000")
	requests.Set(state)
	if fourth := requests.table.Load(); fourth.sockets["web"] == third.sockets["web"] || len(fourth.stats) != 2 {
		t.Error("a route that is gone is still there")
	}
}
