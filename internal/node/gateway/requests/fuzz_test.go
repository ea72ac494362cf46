package requests

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// FuzzTable compares the table with the sentences of the Gateway API, one after the other.
func FuzzTable(f *testing.F) {
	f.Add([]byte("a route of each kind"), []byte("a request"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, []byte{5, 4, 3, 2, 1, 0})
	f.Add([]byte{255, 254, 253, 252, 251, 250, 249, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6}, []byte{9, 9, 9, 9})
	seed := uint32(1)
	for range 300 {
		bytes := make([]byte, 128)
		for i := range bytes {
			seed = seed*1664525 + 1013904223
			bytes[i] = byte(seed >> 24)
		}
		f.Add(bytes[:120], bytes[120:])
	}
	f.Fuzz(func(t *testing.T, config, request []byte) {
		state := made(config)
		asked := choices(request)
		host := asked.of("example.org", "a.example.org", "b.a.example.org", "example.com", "org", "")
		raw := asked.of("/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/a//b", "/a/../b", "/b/x", "/%61/b", "/a%2Fb", "/c/M")
		method := asked.of("GET", "POST", "PUT")
		header := http.Header{}
		for _, name := range []string{"Color", "Size"} {
			if value := asked.of("", "red", "blue"); value != "" {
				header.Add(name, value)
			}
		}
		query := asked.of("", "x=1", "x=2", "x=1&y=2", "y=2&x=2&x=1")
		parsed, err := parsePath(raw)
		if err != nil {
			t.Fatal(err)
		}

		requests := New(Config{})
		defer requests.Close()
		requests.Set(state)
		q := question{path: parsed.match, method: method, host: host, header: header, rawQuery: query}
		got := ""
		name, is := hosts.FromHeader(host)
		if !is {
			t.Fatalf("%q is no host", host)
		}
		if l, is := requests.table.Load().sockets["web"].listeners.Best(name); is {
			if m := l.find(name, &q); m != nil {
				got = m.rule.route.name + " " + m.rule.targets[0].backend.service.Load().source.Name
			}
		}
		if want := naive(state, host, parsed.match, method, header, query); got != want {
			t.Errorf("%s %s%s %v ?%s: got %q, want %q", method, host, raw, header, query, got, want)
		}
	})
}

// choices are decisions that bytes make.
type choices []byte

func (c *choices) of(options ...string) string {
	if len(*c) == 0 {
		return options[0]
	}
	next := (*c)[0]
	*c = (*c)[1:]
	return options[int(next)%len(options)]
}

// made returns a state that bytes describe.
func made(config []byte) *routing.State {
	c := choices(config)
	state := &routing.State{Sockets: map[string]*routing.Socket{"web": {}}, Routes: map[string]*routing.Route{}, Backends: map[string]*routing.Backend{}}
	socket := state.Sockets["web"]
	for _, name := range []string{"1", "2", "3"} {
		socket.Listeners = append(socket.Listeners, routing.Listener{
			Name: name, Protocol: routing.HTTP,
			Hostname: c.of("", "*.example.org", "a.example.org", "*.org", "example.com", "*.a.example.org"),
		})
	}
	for number := 0; len(c) > 0 && number < 12; number++ {
		r := &routing.Route{
			Name:    "HTTPRoute/a/" + string(rune('a'+number)),
			Created: time.Unix(int64(len(c.of("", "1", "12"))), 0),
		}
		for range len(c.of("", "1", "12")) {
			r.Hostnames = append(r.Hostnames, c.of("example.org", "*.example.org", "A.example.org", "*.org", "*.a.example.org"))
		}
		for i := range 1 + len(c.of("", "1")) {
			name := r.Name + string(rune('0'+i))
			state.Backends[name] = &routing.Backend{Name: name}
			rule := routing.Rule{Split: routing.Split{Targets: []routing.Target{{Backend: name, Weight: 1}}}}
			for range len(c.of("", "1", "12")) {
				m := routing.Match{Method: c.of("", "", "GET", "POST")}
				m.PathType = routing.MatchType(c.of("prefix", "exact", "regexp", "prefix"))
				if m.PathType == routing.Regexp {
					m.Path = c.of("/a.*", "/[ab]/.*", ".*", "/a/b")
				} else {
					m.Path = c.of("/", "/a", "/a/", "/a/b", "/b", "/a%2Fb", "/%61")
				}
				for range len(c.of("", "", "1", "12")) {
					m.Headers = append(m.Headers, field(&c, "color", "Color", "size"))
				}
				for range len(c.of("", "", "1", "12")) {
					m.Query = append(m.Query, field(&c, "x", "y"))
				}
				rule.Matches = append(rule.Matches, m)
			}
			r.Rules = append(r.Rules, rule)
		}
		r.SingleLabel = c.of("", "1") != ""
		state.Routes[r.Name] = r
		l := &socket.Listeners[len(c.of("", "1", "12"))]
		l.Routes = append(l.Routes, r.Name)
	}
	return state
}

func field(c *choices, names ...string) routing.Field {
	if c.of("exact", "exact", "regexp") == "regexp" {
		return routing.Field{Type: routing.Regexp, Name: c.of(names...), Value: c.of("r.d", "[12]", "re")}
	}
	return routing.Field{Type: routing.Exact, Name: c.of(names...), Value: c.of("red", "blue", "1", "2")}
}

// naive returns the names of the route and of the backend for a request.
func naive(state *routing.State, host, path, method string, header http.Header, query string) string {
	socket := state.Sockets["web"]
	// "The Listener Hostname MUST match the Host header of the request", the most specific one.
	best := ""
	found := false
	for _, l := range socket.Listeners {
		if hostFits(l.Hostname, host) && (!found || hostRank(l.Hostname) > hostRank(best)) {
			best, found = l.Hostname, true
		}
	}
	if !found {
		return ""
	}
	type candidate struct {
		name    string
		created time.Time
		hosts   int
		kind    int
		length  int
		method  int
		headers int
		query   int
		index   int
		backend string
	}
	var all []candidate
	for _, l := range socket.Listeners {
		if l.Hostname != best {
			continue
		}
		for _, name := range l.Routes {
			r := state.Routes[name]
			hosts := r.Hostnames
			if len(hosts) == 0 {
				hosts = []string{""}
			}
			for _, routeHost := range hosts {
				routeHost = strings.ToLower(routeHost)
				if !hostFits(routeHost, host) {
					continue
				}
				if r.SingleLabel && strings.HasPrefix(routeHost, "*") && strings.Count(routeHost, ".") != strings.Count(host, ".") {
					continue
				}
				index := 0
				for _, rule := range r.Rules {
					matches := rule.Matches
					if len(matches) == 0 {
						matches = []routing.Match{{PathType: routing.PathPrefix, Path: "/"}}
					}
					for _, m := range matches {
						index++
						c := candidate{name: r.Name, created: r.Created, hosts: hostRank(routeHost), index: index, backend: rule.Targets[0].Backend}
						value := strings.ReplaceAll(m.Path, "%61", "a")
						switch m.PathType {
						case routing.Exact:
							c.kind = 3
							if path != value {
								continue
							}
						case routing.Regexp:
							c.kind, c.length = 2, len(value)
							if !regexp.MustCompile(`\A(?:` + value + `)\z`).MatchString(path) {
								continue
							}
						default:
							value = strings.TrimSuffix(value, "/")
							c.kind, c.length = 1, len(value)
							if path != value && !strings.HasPrefix(path, value+"/") {
								continue
							}
						}
						if m.Method != "" && m.Method != method {
							continue
						}
						c.method = min(len(m.Method), 1)
						values, _ := url.ParseQuery(query)
						var fits1, fits2 bool
						c.headers, fits1 = fieldsFit(m.Headers, http.CanonicalHeaderKey, func(name string) (string, bool) {
							return header.Get(name), header.Get(name) != ""
						})
						c.query, fits2 = fieldsFit(m.Query, strings.Clone, func(name string) (string, bool) {
							return values.Get(name), values.Has(name)
						})
						if fits1 && fits2 {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(b.hosts-a.hosts, b.kind-a.kind, b.length-a.length, b.method-a.method, b.headers-a.headers, b.query-a.query,
			a.created.Compare(b.created), strings.Compare(a.name, b.name), a.index-b.index)
	})
	return all[0].name + " " + all[0].backend
}

func hostFits(pattern, host string) bool {
	if rest, is := strings.CutPrefix(pattern, "*"); is {
		return strings.HasSuffix(host, rest) && len(host) > len(rest)
	}
	return pattern == "" || pattern == host
}

// hostRank is by the characters of a name without wildcard, and then by all characters.
func hostRank(pattern string) int {
	if strings.HasPrefix(pattern, "*") || pattern == "" {
		return len(pattern)
	}
	return 1000 + len(pattern)
}

func fieldsFit(fields []routing.Field, canonical func(string) string, get func(string) (string, bool)) (count int, fits bool) {
	seen := map[string]bool{}
	for _, f := range fields {
		name := canonical(f.Name)
		if seen[name] {
			continue
		}
		seen[name] = true
		value, is := get(name)
		if !is || f.Type == routing.Exact && value != f.Value ||
			f.Type == routing.Regexp && !regexp.MustCompile(`\A(?:`+f.Value+`)\z`).MatchString(value) {
			return 0, false
		}
	}
	return len(seen), true
}

// FuzzPath checks that the forms of a path are consistent, and that none of them has a dot
// segment for any way to read it.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"/", "/a/../b", "/a%2f..%2fb", "//a//", "/..;/", "/%2e%2e", "/a%252e%252e/", `/\..`, "/.%2e/%5c..", "/%252Fadmin", "/%25%32%46admin", "/%2525"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		p, err := parsePath(raw)
		if err != nil {
			return
		}
		if p.raw != raw || strings.Count(p.clean, "/") != strings.Count(p.match, "/") {
			t.Errorf("%q: forms %q", raw, p)
		}
		again, err := parsePath(p.clean)
		if err != nil || again.clean != p.clean || again.match != p.match {
			t.Errorf("%q: %q becomes %q, %v", raw, p, again, err)
		}
		decoded, err := url.PathUnescape(p.clean)
		if err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		for segment := range strings.SplitSeq(strings.ReplaceAll(decoded, `\`, "/"), "/") {
			if name, _, _ := strings.Cut(segment, ";"); name == "." || name == ".." {
				t.Errorf("%q: %q has a dot segment", raw, p)
			}
		}
		if !hidesSegments(raw) {
			// Whoever decodes the path, once or again, finds the same segments.
			text := raw
			for range 5 {
				text, _ = decode(text)
				if strings.Count(text, "/") != strings.Count(raw, "/") || strings.Count(text, ".") != strings.Count(raw, ".") || strings.ContainsAny(text, "\\\x00") {
					t.Errorf("%q becomes %q", raw, text)
				}
			}
		}
		if replaced := p.replacePrefix("", "/x"); !strings.HasPrefix(replaced, "/x") {
			t.Errorf("%q: replaced %q", raw, replaced)
		}
	})
}

// FuzzClient checks that nobody but a trusted proxy can say who the client is, and that a session
// or an origin that a client makes up is none.
func FuzzClient(f *testing.F) {
	f.Add("192.0.2.1, 10.0.0.1", "https", "https://a.example", "0011223344556677.1.2")
	f.Add("[::1]:80,,x", "gopher", "https://evil.example/.good.example", "...")
	f.Add("", "", "https://evil.example?.good.example", "")
	f.Add("", "", "https://evil.example%.good.example", "")
	f.Add("::ffff:10.0.0.1%eth0", "", "null", "a.9223372036854775807.-1")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	only := newCORS(&routing.CORS{AllowOrigins: []string{"https://*.good.example"}})
	f.Fuzz(func(t *testing.T, chain, proto, origin, session string) {
		for _, peer := range []string{"192.0.2.99", "10.0.0.99"} {
			r := &http.Request{RemoteAddr: peer + ":1", Header: http.Header{"X-Forwarded-For": {chain}, "X-Forwarded-Proto": {proto}}}
			c := clientOf(r, trusted)
			if !c.trusted && (c.address != c.peer || c.proto != "http") || !c.address.IsValid() || c.proto != "http" && c.proto != "https" {
				t.Errorf("%s with %q, %q: got %+v", peer, chain, proto, c)
			}
			c.forwarded(r.Header, "example.org", "80")
			if got := r.Header.Get("X-Forwarded-For"); !strings.HasSuffix(got, peer) || !c.trusted && got != peer {
				t.Errorf("%s with %q: got %q", peer, chain, got)
			}
		}
		if only.allowed(origin) != "" {
			parsed, err := url.Parse(origin)
			if err != nil || !strings.HasSuffix(strings.ToLower(parsed.Hostname()), ".good.example") {
				t.Errorf("the origin %q is allowed", origin)
			}
		}
		if v, is := parseSession(session); is {
			if again, is := parseSession(v.String()); !is || again != v {
				t.Errorf("%q becomes %v", session, again)
			}
		}
	})
}
