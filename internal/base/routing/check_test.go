package routing

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

// good returns an update that a server may send.
func good() *Update {
	return &Update{Whole: true, State: State{
		Sockets: map[string]*Socket{
			"kube-system/kedge-gateway:443/tcp": {
				Transport: TCP, Port: 30443, PublicPort: 443, HTTP3: true, ProxyProtocol: true,
				Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
				Listeners: []Listener{
					{
						Name: "shop/web/https", Protocol: HTTPS, Hostname: "*.example.com", Certificates: []string{"shop/web"},
						Routes: []string{"HTTPRoute/shop/web"}, ClientAuthorities: "PEM",
						Challenges:            map[string]string{"a-Z_0": "a-Z_0.x"},
						ChallengeCertificates: map[string]string{"a.example.com": "acme/a"},
					},
					{Name: "shop/web/tls", Protocol: TLSPassthrough},
				},
			},
			"u": {Transport: UDP, Port: 30443, PublicPort: 443, Listeners: []Listener{{Name: "h3", Protocol: HTTPS}, {Name: "u", Protocol: RawUDP}}},
		},
		Routes: map[string]*Route{
			"HTTPRoute/shop/web": {
				Name: "HTTPRoute/shop/web", Created: time.Unix(1, 0).UTC(), Hostnames: []string{"a.example.com"},
				Rules: []Rule{{
					Name: "first",
					Matches: []Match{
						{
							PathType: PathPrefix, Path: "/", Method: "GET",
							Headers: []Field{{Type: Exact, Name: "X-A", Value: "b c"}, {Type: Regexp, Name: "x", Value: `a{1,1000}|\pL+`}},
							Query:   []Field{{Type: Exact, Name: "q", Value: "\n"}},
						},
						{PathType: Regexp, Path: `/[a-z]+`},
					},
					Filters: []Filter{
						{RequestHeaders: &Headers{Set: []Header{{"A", "b\tc"}}, Add: []Header{{"A", ""}}, Remove: []string{"B"}}},
						{ResponseHeaders: &Headers{}},
						{Redirect: &Redirect{Scheme: "https", Hostname: "example.com", Path: &Path{Value: "/x"}, Code: 308}},
						{Rewrite: &Rewrite{Hostname: "example.com", Path: &Path{Prefix: true}}},
						{Mirror: &Mirror{Backend: "shop/other:80", Numerator: 1, Denominator: 100}},
						{CORS: &CORS{AllowOrigins: []string{"*", "https://*.example.com:8443"}, AllowMethods: []string{"*", "GET"}, ExposeHeaders: []string{"X-A"}, MaxAge: 5}},
						{Fault: 500},
					},
					Split: Split{
						Targets: []Target{{Backend: "shop/web:80", Weight: 1_000_000}, {Fault: 503, Filters: []Filter{{Fault: 500}}}},
						Session: &Session{Name: "kedge", Absolute: time.Hour},
					},
					Timeout: 99_999 * time.Hour, Retry: &Retry{Codes: []int{500, 503}, Attempts: 3, Backoff: time.Second},
					MaxBody: 1 << 40, Auth: &BasicAuth{Realm: `the "shop"`, Users: "a:b\n"},
				}},
			},
			"TCPRoute/shop/db": {Name: "TCPRoute/shop/db", Stream: &Split{Targets: []Target{{Backend: "shop/db:5432"}}}},
			"gone":             nil,
		},
		Backends: map[string]*Backend{
			"shop/web:80": {
				Name: "shop/web:80", Protocol: PlainH2, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.1:80"), netip.MustParseAddrPort("[fd00::1]:80")},
				TLS: &BackendTLS{ServerName: "example.com", Names: []string{"*.example.com"}, URIs: []string{"spiffe://a/b"}, Authorities: "PEM", ClientCertificate: "shop/web"},
			},
		},
		Certificates: map[string]*Certificate{"shop/web": {Chain: "PEM", Key: "PEM"}},
	}}
}

// TestCheck changes a good update into all kinds of bad ones.
func TestCheck(t *testing.T) {
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	socket := func(u *Update) *Socket { return u.Sockets["kube-system/kedge-gateway:443/tcp"] }
	listener := func(u *Update) *Listener { return &socket(u).Listeners[0] }
	route := func(u *Update) *Route { return u.Routes["HTTPRoute/shop/web"] }
	rule := func(u *Update) *Rule { return &route(u).Rules[0] }
	match := func(u *Update) *Match { return &rule(u).Matches[0] }
	filter := func(u *Update, i int) *Filter { return &rule(u).Filters[i] }
	backend := func(u *Update) *Backend { return u.Backends["shop/web:80"] }
	certificate := func(u *Update) *Certificate { return u.Certificates["shop/web"] }
	long, large := strings.Repeat("a", maxText+1), strings.Repeat("a", maxPEM+1)

	for name, spoil := range map[string]func(*Update){
		"a name with a line feed":         func(u *Update) { u.Routes["a\nb"] = nil },
		"no name":                         func(u *Update) { u.Backends[""] = nil },
		"a long name":                     func(u *Update) { u.Sockets[strings.Repeat("a", maxName+1)] = nil },
		"a name in another script":        func(u *Update) { u.Certificates["ä"] = nil },
		"another transport":               func(u *Update) { socket(u).Transport = "sctp" },
		"no port":                         func(u *Update) { socket(u).Port = 0 },
		"no public port":                  func(u *Update) { socket(u).PublicPort = 0 },
		"two sockets with a port":         func(u *Update) { u.Sockets["x"] = socket(u) },
		"no range":                        func(u *Update) { socket(u).Trusted[0] = netip.Prefix{} },
		"another protocol":                func(u *Update) { listener(u).Protocol = "ftp" },
		"a bad reserved name":             func(u *Update) { socket(u).Reserved = []string{"*"} },
		"TCP over UDP":                    func(u *Update) { u.Sockets["u"].Listeners[0].Protocol = RawTCP },
		"UDP over TCP":                    func(u *Update) { listener(u).Protocol = RawUDP },
		"a listener without a name":       func(u *Update) { listener(u).Name = "" },
		"a listener for a bad host":       func(u *Update) { listener(u).Hostname = "a..b" },
		"a listener for wild cards":       func(u *Update) { listener(u).Hostname = "*.*.example.com" },
		"a bad name of a route":           func(u *Update) { listener(u).Routes[0] = "a b" },
		"a bad name of a certificate":     func(u *Update) { listener(u).Certificates[0] = "" },
		"large client authorities":        func(u *Update) { listener(u).ClientAuthorities = large },
		"a challenge with a path":         func(u *Update) { listener(u).Challenges["../x"] = "a" },
		"a challenge with a line feed":    func(u *Update) { listener(u).Challenges["x"] = "a\r\nb" },
		"a challenge for a bad host":      func(u *Update) { listener(u).ChallengeCertificates["*.x"] = "a" },
		"a route with a bad name":         func(u *Update) { route(u).Name = "a\x1b[0m" },
		"a route for a bad host":          func(u *Update) { route(u).Hostnames[0] = "A.example.com" },
		"requests and connections":        func(u *Update) { route(u).Stream = &Split{} },
		"a rule with a bad name":          func(u *Update) { rule(u).Name = "a b" },
		"a bad method":                    func(u *Update) { match(u).Method = "GET /" },
		"a path without a type":           func(u *Update) { match(u).PathType = "" },
		"a path that is not absolute":     func(u *Update) { match(u).Path = "a" },
		"no path":                         func(u *Update) { match(u).Path = "" },
		"a path with a line feed":         func(u *Update) { match(u).Path = "/\n" },
		"a long path":                     func(u *Update) { match(u).Path = "/" + long },
		"a header with a bad name":        func(u *Update) { match(u).Headers[0].Name = "a:" },
		"a header with a prefix":          func(u *Update) { match(u).Headers[0].Type = PathPrefix },
		"a header with a long value":      func(u *Update) { match(u).Headers[0].Value = long },
		"a parameter without a name":      func(u *Update) { match(u).Query[0].Name = "" },
		"no regular expression":           func(u *Update) { match(u).Headers[1].Value = "(" },
		"two regular expressions":         func(u *Update) { match(u).Headers[1].Value = "a)|(b" },
		"an open quotation":               func(u *Update) { rule(u).Matches[1].Path = `\Qabc` },
		"a look behind":                   func(u *Update) { rule(u).Matches[1].Path = `(?<=a)b` },
		"a long regular expression":       func(u *Update) { rule(u).Matches[1].Path = long },
		"a large regular expression":      func(u *Update) { rule(u).Matches[1].Path = `((a{100}){10}){21}` },
		"many regular expressions":        func(u *Update) { addMatches(rule(u), 21, `a{1000}`) },
		"no filter":                       func(u *Update) { rule(u).Filters[0] = Filter{} },
		"two filters in one":              func(u *Update) { filter(u, 0).Fault = 500 },
		"a header is set with a bad name": func(u *Update) { filter(u, 0).RequestHeaders.Set[0].Name = "a b" },
		"a header is set to two lines":    func(u *Update) { filter(u, 0).RequestHeaders.Set[0].Value = "a\r\nb: c" },
		"a bad header is removed":         func(u *Update) { filter(u, 0).RequestHeaders.Remove[0] = "" },
		"another scheme":                  func(u *Update) { filter(u, 2).Redirect.Scheme = "javascript" },
		"another redirect":                func(u *Update) { filter(u, 2).Redirect.Code = 200 },
		"a redirect to a bad host":        func(u *Update) { filter(u, 2).Redirect.Hostname = "a/b" },
		"a redirect to two lines":         func(u *Update) { filter(u, 2).Redirect.Path.Value = "/\r\n" },
		"a rewrite to a bad host":         func(u *Update) { filter(u, 3).Rewrite.Hostname = "*.a" },
		"a mirror of nothing":             func(u *Update) { filter(u, 4).Mirror.Backend = "" },
		"a mirror of too much":            func(u *Update) { filter(u, 4).Mirror.Numerator = 101 },
		"a mirror of a part of 0":         func(u *Update) { filter(u, 4).Mirror.Denominator = 0 },
		"an origin of two lines":          func(u *Update) { filter(u, 5).CORS.AllowOrigins[0] = "a\nb" },
		"a bad method of CORS":            func(u *Update) { filter(u, 5).CORS.AllowMethods[0] = "a,b" },
		"a negative age":                  func(u *Update) { filter(u, 5).CORS.MaxAge = -1 },
		"a fault that is none":            func(u *Update) { filter(u, 6).Fault = 200 },
		"a bad name of a backend":         func(u *Update) { rule(u).Targets[0].Backend = "a b" },
		"a target's fault that is none":   func(u *Update) { rule(u).Targets[1].Fault = 42 },
		"a target's filter":               func(u *Update) { rule(u).Targets[1].Filters[0].Fault = 1 },
		"a negative weight":               func(u *Update) { rule(u).Targets[0].Weight = -1 },
		"a large weight":                  func(u *Update) { rule(u).Targets[0].Weight = maxWeight + 1 },
		"a session with a bad name":       func(u *Update) { rule(u).Session.Name = "a=b" },
		"a session without an end":        func(u *Update) { rule(u).Session.Idle = -1 },
		"a negative timeout":              func(u *Update) { rule(u).Timeout = -1 },
		"a long timeout":                  func(u *Update) { rule(u).BackendTimeout = maxDuration + 1 },
		"a retry after success":           func(u *Update) { rule(u).Retry.Codes[0] = 200 },
		"many attempts":                   func(u *Update) { rule(u).Retry.Attempts = maxAttempts + 1 },
		"a negative backoff":              func(u *Update) { rule(u).Retry.Backoff = -1 },
		"a negative body":                 func(u *Update) { rule(u).MaxBody = -1 },
		"a realm of two lines":            func(u *Update) { rule(u).Auth.Realm = "a\nb" },
		"many users":                      func(u *Update) { rule(u).Auth.Users = large },
		"a stream with a bad weight":      func(u *Update) { u.Routes["TCPRoute/shop/db"].Stream.Targets[0].Weight = -1 },
		"a backend without a name":        func(u *Update) { backend(u).Name = "" },
		"a backend's protocol":            func(u *Update) { backend(u).Protocol = "h3" },
		"no endpoint":                     func(u *Update) { backend(u).Endpoints[0] = netip.AddrPort{} },
		"an endpoint without a port":      func(u *Update) { backend(u).Endpoints[0] = netip.MustParseAddrPort("10.42.0.1:0") },
		"an endpoint with a zone":         func(u *Update) { backend(u).Endpoints[0] = netip.MustParseAddrPort("[fe80::1%eth0]:1") },
		"an endpoint that is no host":     func(u *Update) { backend(u).Endpoints[0] = netip.MustParseAddrPort("224.0.0.1:1") },
		"a backend's bad server name":     func(u *Update) { backend(u).TLS.ServerName = "*.a" },
		"a backend's bad name":            func(u *Update) { backend(u).TLS.Names[0] = "" },
		"a backend's bad URI":             func(u *Update) { backend(u).TLS.URIs[0] = "a b" },
		"large authorities":               func(u *Update) { backend(u).TLS.Authorities = large },
		"a backend's bad certificate":     func(u *Update) { backend(u).TLS.ClientCertificate = "a b" },
		"a certificate without a key":     func(u *Update) { certificate(u).Key = "" },
		"a large certificate":             func(u *Update) { certificate(u).Chain = large },
	} {
		u := good()
		spoil(u)
		if err := u.Check(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func addMatches(r *Rule, count int, pattern string) {
	for range count {
		r.Matches = append(r.Matches, Match{PathType: Regexp, Path: pattern})
	}
}

// TestCompileRegexp wants patterns to match the whole text, or to be refused before they take
// much memory.
func TestCompileRegexp(t *testing.T) {
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"/a|/b", "/b", true},
		{"/a|/b", "/bc", false},
		{"/a", "x/a", false},
		{"(?i)/A", "/a", true},
		{"(?m)^a$", "a\nb", false},
		{"", "", true},
		{"", "a", false},
		{".*", "a\nb", false},
		{"a{1000}", strings.Repeat("a", 1000), true},
	} {
		compiled, err := CompileRegexp(test.pattern)
		if err != nil || compiled.MatchString(test.text) != test.want {
			t.Errorf("%q with %q: want %t, got %v", test.pattern, test.text, test.want, err)
		}
	}
	for _, pattern := range []string{"(a{1000}){1000}", "((a{30}){30}){30}", strings.Repeat("(a{1000})", 100), `(\pL{100}){1000}`, "(", `a\`, "a)|(b", `\Qa`, strings.Repeat("a", maxText+1)} {
		if _, err := CompileRegexp(pattern); err == nil {
			t.Errorf("%.50q is accepted", pattern)
		}
	}
}
