package requests

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

func filtered(path string, filters ...routing.Filter) routing.Rule {
	return with(to(path, "b"), func(r *routing.Rule) { r.Filters = filters })
}

// TestRedirect has the cases of the conformance tests HTTPRouteRedirect*.
func TestRedirect(t *testing.T) {
	redirect := func(path string, to routing.Redirect) routing.Rule {
		if to.Code == 0 {
			to.Code = 302
		}
		return filtered(path, routing.Filter{Redirect: &to})
	}
	prefix, full := &routing.Path{Prefix: true, Value: "/replacement-prefix"}, &routing.Path{Value: "/full-path-replacement"}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		redirect("/none", routing.Redirect{}),
		redirect("/80", routing.Redirect{Port: 80}),
		redirect("/8080", routing.Redirect{Port: 8080}),
		redirect("/443", routing.Redirect{Port: 443}),
		redirect("/https", routing.Redirect{Scheme: "https"}),
		redirect("/https-443", routing.Redirect{Scheme: "https", Port: 443}),
		redirect("/https-8443", routing.Redirect{Scheme: "https", Port: 8443}),
		redirect("/http", routing.Redirect{Scheme: "http"}),
		redirect("/http-8080", routing.Redirect{Scheme: "http", Port: 8080}),
		redirect("/original", routing.Redirect{Path: prefix}),
		redirect("/full", routing.Redirect{Path: full}),
		redirect("/host", routing.Redirect{Hostname: "other.org", Path: prefix, Code: 301}),
		redirect("/303", routing.Redirect{Code: 303}),
		redirect("/307", routing.Redirect{Code: 307}),
		redirect("/308", routing.Redirect{Code: 308}),
	}})
	for _, test := range []struct {
		port   uint16
		secure bool
		target string
		code   int
		want   string
	}{
		{80, false, "/none", 302, "http://example.org/none"},
		{80, false, "/80", 302, "http://example.org/80"},
		{80, false, "/8080", 302, "http://example.org:8080/8080"},
		{80, false, "/https", 302, "https://example.org/https"},
		{80, false, "/https-443", 302, "https://example.org/https-443"},
		{80, false, "/https-8443", 302, "https://example.org:8443/https-8443"},
		{8080, false, "/none", 302, "http://example.org:8080/none"},
		{8080, false, "/80", 302, "http://example.org/80"},
		{8080, false, "/https", 302, "https://example.org/https"},
		{443, true, "/none", 302, "https://example.org/none"},
		{443, true, "/443", 302, "https://example.org/443"},
		{443, true, "/8080", 302, "https://example.org:8080/8080"},
		{443, true, "/http", 302, "http://example.org/http"},
		{443, true, "/http-8080", 302, "http://example.org:8080/http-8080"},
		{80, false, "/original/lemon%20pie?a=b;c", 302, "http://example.org/replacement-prefix/lemon%20pie?a=b;c"},
		{80, false, "/full/path/original?a", 302, "http://example.org/full-path-replacement?a"},
		{80, false, "/host", 301, "http://other.org/replacement-prefix"},
		{80, false, "/303", 303, "http://example.org/303"},
		{80, false, "/307/%41", 307, "http://example.org/307/%41"},
		{80, false, "/308", 308, "http://example.org/308"},
	} {
		protocol := routing.HTTP
		if test.secure {
			protocol = routing.HTTPS
		}
		w.state.Sockets = map[string]*routing.Socket{"web": {PublicPort: test.port, Listeners: []routing.Listener{
			{Name: "l", Protocol: protocol, Routes: []string{"r"}},
		}}}
		w.set()
		r := httptest.NewRequest(http.MethodGet, test.target, nil)
		r.Host = "example.org:1234"
		if test.secure {
			r = secured(r, "example.org", "")
		}
		if got := w.record(r); got.Code != test.code || got.Header().Get("Location") != test.want {
			t.Errorf("%d%s: got %d, %s, want %s", test.port, test.target, got.Code, got.Header().Get("Location"), test.want)
		}
	}
}

// TestHeaders has cases of the conformance tests HTTPRouteRequestHeaderModifier and
// HTTPRouteResponseHeaderModifier, for rules and for backends.
func TestHeaders(t *testing.T) {
	changes := &routing.Headers{
		Set:    []routing.Header{{Name: "X-Set", Value: "set"}},
		Add:    []routing.Header{{Name: "x-add", Value: "added"}},
		Remove: []string{"x-REMOVE"},
	}
	request, response := routing.Filter{RequestHeaders: changes}, routing.Filter{ResponseHeaders: changes}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		filtered("/rule", request, response),
		with(to("/target", "b"), func(r *routing.Rule) { r.Targets[0].Filters = []routing.Filter{request, response} }),
		filtered("/fault", routing.Filter{Fault: 500}, response),
		filtered("/host", routing.Filter{RequestHeaders: &routing.Headers{Set: []routing.Header{{Name: "host", Value: "set.example"}}}}),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Set", "own")
		rw.Header().Add("X-Add", "own")
		rw.Header().Set("X-Remove", "own")
		echoing("b")(rw, r)
	})
	for _, path := range []string{"/rule", "/target"} {
		for range 2 {
			got := w.ask("GET", path, "x-set: mine", "X-Add: mine", "X-Remove: mine", "Other: mine")
			for _, test := range []struct {
				header http.Header
				before string
			}{{got.echo.Header, "mine"}, {got.Header, "own"}} {
				h := test.header
				if strings.Join(h["X-Set"], ",") != "set" || strings.Join(h["X-Add"], ",") != test.before+",added" || h["X-Remove"] != nil {
					t.Errorf("%s: got %v", path, h)
				}
			}
			if got.echo.Header.Get("Other") != "mine" {
				t.Errorf("%s: got %v", path, got.echo.Header)
			}
		}
	}
	if got := w.ask("GET", "/fault"); got.StatusCode != 500 || got.Header.Get("X-Set") != "set" {
		t.Errorf("got %d, %v", got.StatusCode, got.Header)
	}
	if got := w.ask("GET", "/host"); got.echo.Host != "set.example" {
		t.Errorf("got %q", got.echo.Host)
	}
}

// TestRewrite has cases of the conformance tests HTTPRouteRewritePath and HTTPRouteRewriteHost.
func TestRewrite(t *testing.T) {
	rewrite := func(path string, to routing.Rewrite) routing.Rule {
		return filtered(path, routing.Filter{Rewrite: &to})
	}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		rewrite("/prefix/one", routing.Rewrite{Path: &routing.Path{Prefix: true, Value: "/one"}}),
		rewrite("/strip-prefix", routing.Rewrite{Path: &routing.Path{Prefix: true, Value: "/"}}),
		rewrite("/full/one", routing.Rewrite{Path: &routing.Path{Value: "/one"}}),
		rewrite("/host", routing.Rewrite{Hostname: "one.example.org"}),
		with(to("/target", "b"), func(r *routing.Rule) {
			r.Targets[0].Filters = []routing.Filter{{Rewrite: &routing.Rewrite{Path: &routing.Path{Prefix: true, Value: "/t"}}}}
		}),
		to("/", "b"),
	}})
	w.backend("b", nil)
	for asked, want := range map[string]string{
		"/prefix/one/two":                 "example.org /one/two",
		"/prefix/one/two%2Fthree/%41?q=%": "example.org /one/two%2Fthree/%41?q=%",
		"/strip-prefix/three":             "example.org /three",
		"/strip-prefix":                   "example.org /",
		"/full/one/two?a=b":               "example.org /one?a=b",
		"/host":                           "one.example.org /host",
		"/target/x":                       "example.org /t/x",
		// What is not rewritten arrives byte by byte.
		"/a/../b":            "example.org /a/../b",
		"//a//b":             "example.org //a//b",
		"/%2e/%41%2Fb%7e":    "example.org /%2e/%41%2Fb%7e",
		"/a|b^c\"{}<>`":      "example.org /a|b^c\"{}<>`",
		"/a;b=c,d!$&'()*+:@": "example.org /a;b=c,d!$&'()*+:@",
		"/?a=b;c&d=%zz&&":    "example.org /?a=b;c&d=%zz&&",
		"/?":                 "example.org /?",
	} {
		if got := w.ask("GET", asked); got.echo.Host+" "+got.echo.URI != want {
			t.Errorf("%s: got %d, %s %s, want %s", asked, got.StatusCode, got.echo.Host, got.echo.URI, want)
		}
	}
}

// TestCORS has the cases of the conformance test HTTPRouteCORS.
func TestCORS(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		filtered("/cors-1", routing.Filter{CORS: &routing.CORS{
			AllowOrigins: []string{"https://www.foo.com", "https://*.bar.com"}, AllowMethods: []string{"GET", "OPTIONS"},
			AllowHeaders: []string{"x-header-1", "x-header-2"}, ExposeHeaders: []string{"x-header-3", "x-header-4"},
			AllowCredentials: true, MaxAge: 3600,
		}}),
		filtered("/cors-2", routing.Filter{CORS: &routing.CORS{AllowOrigins: []string{"https://www.foo.com"}, AllowMethods: []string{"*"}}}),
		filtered("/origin", routing.Filter{CORS: &routing.CORS{AllowOrigins: []string{"*"}, AllowMethods: []string{"PUT"}}}),
		filtered("/all", routing.Filter{CORS: &routing.CORS{
			AllowOrigins: []string{"*"}, AllowMethods: []string{"*"}, AllowHeaders: []string{"*"}, ExposeHeaders: []string{"*", "x-a"}, AllowCredentials: true,
		}}),
		filtered("/all-unauth", routing.Filter{CORS: &routing.CORS{
			AllowOrigins: []string{"*"}, AllowMethods: []string{"*"}, AllowHeaders: []string{"*"},
		}}),
		with(filtered("/post", routing.Filter{CORS: &routing.CORS{AllowOrigins: []string{"http://a:8080"}}}), func(r *routing.Rule) {
			r.Matches[0].Method = "POST"
			r.Auth = &routing.BasicAuth{Users: "nobody:x"}
		}),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(allowOrigin, "https://of.the.backend")
		echoing("b")(rw, r)
	})
	const foo = "Origin: https://www.foo.com"
	const absent = "absent"
	for _, test := range []struct {
		method, path string
		headers      []string
		status       int
		want         map[string]string
	}{
		{"OPTIONS", "/cors-1", []string{foo, requestMethod + ": GET", requestHeaders + ": x-header-1, x-header-2"}, 204, map[string]string{
			allowOrigin: "https://www.foo.com", allowMethods: "GET, OPTIONS", allowHeaders: "x-header-1, x-header-2",
			exposeHeaders: "x-header-3, x-header-4", maxAge: "3600", allowCreds: "true",
		}},
		{"OPTIONS", "/cors-1", []string{"Origin: https://www.bar.com", requestMethod + ": GET"}, 204, map[string]string{allowOrigin: "https://www.bar.com"}},
		{"OPTIONS", "/cors-1", []string{"Origin: https://xpto.www.bar.com", requestMethod + ": GET"}, 204, map[string]string{allowOrigin: "https://xpto.www.bar.com"}},
		{"OPTIONS", "/cors-1", []string{"Origin: https://foobar.com", requestMethod + ": GET"}, 403, map[string]string{allowOrigin: absent}},
		{"OPTIONS", "/cors-1", []string{"Origin: https://.bar.com", requestMethod + ": GET"}, 403, nil},
		{"OPTIONS", "/cors-1", []string{"Origin: http://www.foo.com", requestMethod + ": GET"}, 403, nil},
		{"OPTIONS", "/cors-1", []string{"Origin: https://www.foo.com:8443", requestMethod + ": GET"}, 403, nil},
		{"OPTIONS", "/cors-1", []string{"Origin: null", requestMethod + ": GET"}, 403, nil},
		{"OPTIONS", "/cors-1", []string{foo}, 200, map[string]string{allowOrigin: "https://www.foo.com"}},
		{"GET", "/cors-1", []string{foo, requestMethod + ": GET"}, 200, map[string]string{
			allowOrigin: "https://www.foo.com", exposeHeaders: "x-header-3, x-header-4", allowMethods: absent, "Vary": "Origin",
		}},
		{"GET", "/cors-1", []string{"Origin: https://foobar.com"}, 200, map[string]string{allowOrigin: absent, "Vary": "Origin"}},
		{"GET", "/cors-1", nil, 200, map[string]string{allowOrigin: absent, "Vary": "Origin"}},
		{"OPTIONS", "/cors-2", []string{foo, requestMethod + ": POST"}, 204, map[string]string{
			allowOrigin: "https://www.foo.com", allowMethods: "POST", allowCreds: absent, maxAge: "5",
		}},
		{"OPTIONS", "/origin", []string{"Origin: https://foobar.com:12345", requestMethod + ": PUT"}, 204, map[string]string{
			allowOrigin: "*", allowMethods: "PUT", allowCreds: absent,
		}},
		{"PUT", "/origin", []string{"Origin: https://foobar.com:12345"}, 200, map[string]string{allowOrigin: "*", allowCreds: absent, "Vary": absent}},
		{"OPTIONS", "/all", []string{"Origin: https://other.foo.com", requestMethod + ": PUT", requestHeaders + ": x-header-1, x-header-2"}, 204, map[string]string{
			allowOrigin: "https://other.foo.com", allowMethods: "PUT", allowHeaders: "x-header-1, x-header-2", allowCreds: "true", exposeHeaders: "x-a",
		}},
		{"OPTIONS", "/all", []string{"Origin: https://other.foo.com", requestMethod + ": PUT"}, 204, map[string]string{allowHeaders: absent}},
		{"OPTIONS", "/all-unauth", []string{"Origin: https://other.foo.com", requestMethod + ": PUT"}, 204, map[string]string{
			allowOrigin: "*", allowMethods: "PUT", allowCreds: absent,
		}},
		{"GET", "/all", []string{"Origin: https://other.foo.com"}, 200, map[string]string{allowOrigin: "https://other.foo.com", allowCreds: "true"}},
		{"GET", "/all-unauth", []string{"Origin: https://other.foo.com"}, 200, map[string]string{allowCreds: absent}},
		{"OPTIONS", "/post", []string{"Origin: http://a:8080", requestMethod + ": POST"}, 204, map[string]string{allowOrigin: "http://a:8080"}},
		{"POST", "/post", []string{"Origin: http://a:8080"}, 401, map[string]string{allowOrigin: "http://a:8080"}},
		{"OPTIONS", "/post", []string{"Origin: http://a:8080", requestMethod + ": PUT"}, 404, nil},
	} {
		got := w.ask(test.method, test.path, test.headers...)
		if got.StatusCode != test.status {
			t.Errorf("%s %s %q: got %d, want %d", test.method, test.path, test.headers, got.StatusCode, test.status)
		}
		for name, want := range test.want {
			values := got.Header[name]
			if want == absent && values != nil || want != absent && !slices.Equal(values, []string{want}) {
				t.Errorf("%s %s %q: got %s %q, want %q", test.method, test.path, test.headers, name, values, want)
			}
		}
	}
}

// TestTargets sees who answers requests that no endpoint gets, and that weights hold.
func TestTargets(t *testing.T) {
	adding := func(t routing.Target) func(*routing.Rule) {
		return func(r *routing.Rule) { r.Targets = append(r.Targets, t) }
	}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/weights", "b"), adding(routing.Target{Backend: "c", Weight: 3})),
		with(to("/zero", "b"), adding(routing.Target{Backend: "c"})),
		with(to("/invalid"), adding(routing.Target{Fault: 500, Weight: 1})),
		with(to("/unknown"), adding(routing.Target{Backend: "x", Fault: 503, Weight: 1})),
		with(to("/unknown-500"), adding(routing.Target{Backend: "x", Weight: 1})),
		to("/empty", "empty"),
		to("/none"),
		with(to("/nothing"), adding(routing.Target{Backend: "b"})),
		to("/dead", "dead"),
	}})
	w.backend("b", nil)
	w.backend("c", nil)
	w.state.Backends["empty"] = &routing.Backend{Name: "empty"}
	w.state.Backends["dead"] = &routing.Backend{Name: "dead"}
	w.state.Backends["dead"].Endpoints = append(w.state.Backends["dead"].Endpoints, deadAddress(t), deadAddress(t))
	w.set()
	for path, want := range map[string]int{
		"/invalid": 500, "/unknown": 503, "/unknown-500": 500, "/empty": 503, "/none": 500, "/nothing": 500, "/dead": 502, "/zero": 200,
		"/not": 404,
	} {
		if got := w.ask("GET", path); got.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, got.StatusCode, want)
		}
	}
	rule := w.requests.table.Load().routes["r"].rules[0]
	count := map[*target]int{}
	for range 40_000 {
		count[rule.choose()]++
	}
	// Beyond six standard deviations a failure is no accident.
	if got := count[&rule.targets[1]]; got < 29_480 || got > 30_520 {
		t.Errorf("the target with three of four parts got %d of 40000", got)
	}
	for range 100 {
		if got := w.requests.table.Load().routes["r"].rules[1].choose(); got.weight != 1 {
			t.Fatal("a target without weight was chosen")
		}
	}
}
