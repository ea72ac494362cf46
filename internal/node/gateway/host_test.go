package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// app is a backend that remembers which hosts it was asked for.
type app struct {
	mu    sync.Mutex
	hosts []string
}

// ServeHTTP implements http.Handler.
func (a *app) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hosts = append(a.hosts, fmt.Sprint(r.Host, r.Header["Host"]))
	_, _ = io.WriteString(w, "the app of public.example")
}

// seen returns the hosts of the requests since the last call.
func (a *app) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.hosts = nil }()
	return a.hosts
}

// TestSecondHost sends requests that name two hosts, with TLS, and with all versions of HTTP. The app gets
// the host that has chosen the rule, also if a filter writes the header anew. The other host has an app of
// its own, which gets nothing.
func TestSecondHost(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "public.example"})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "internal.example"})
	of := &app{}
	server := httptest.NewServer(of)
	defer server.Close()
	const public = "https/public.example"
	b.state.Backends[public].Endpoints = []netip.AddrPort{netip.MustParseAddrPort(server.Listener.Addr().String())}
	b.state.Routes[public].Rules[0].Filters = []routing.Filter{{RequestHeaders: &routing.Headers{Set: []routing.Header{{Name: "X-A", Value: "a"}}}}}
	b.apply()
	over1 := func(target string, hosts ...string) func() (int, string, error) {
		return func() (int, string, error) {
			c, err := b.secured("http/1.1", "public.example")
			if err != nil {
				return 0, "", err
			}
			defer c.Close()
			return rawHTTP1(c, "GET "+target+" HTTP/1.1\r\nConnection: close\r\nHost: "+strings.Join(hosts, "\r\nHost: ")+"\r\n\r\n")
		}
	}
	fields := func(authority string, hosts []string) []string {
		all := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", authority}
		for _, host := range hosts {
			all = append(all, "host", host)
		}
		return all
	}
	over2 := func(authority string, hosts ...string) func() (int, string, error) {
		return func() (int, string, error) {
			c, err := b.secured("h2", "public.example")
			if err != nil {
				return 0, "", err
			}
			defer c.Close()
			return testutil.RawHTTP2(c, fields(authority, hosts)...)
		}
	}
	over3 := func(authority string, hosts ...string) func() (int, string, error) {
		return func() (int, string, error) { return b.rawHTTP3("public.example", fields(authority, hosts)...) }
	}
	for _, test := range []struct {
		name string
		ask  func() (status int, body string, err error)
		want int // 0 if the stream ends without an answer
	}{
		{"HTTP/1.1", over1("/", "public.example"), 200},
		{"HTTP/1.1, an absolute target and another host", over1("https://public.example/", "internal.example"), 200},
		{"HTTP/1.1, an absolute target without TLS and another host", over1("http://public.example/", "internal.example"), 200},
		{"HTTP/1.1, an absolute target for the other host", over1("https://internal.example/", "public.example"), 421},
		{"HTTP/1.1, two headers", over1("/", "public.example", "internal.example"), 400},
		{"HTTP/2", over2("public.example"), 200},
		{"HTTP/2, another host", over2("public.example", "internal.example"), 200},
		{"HTTP/2, two other hosts", over2("public.example", "internal.example", "internal.example"), 200},
		{"HTTP/2, for the other host", over2("internal.example", "public.example"), 421},
		{"HTTP/3", over3("public.example"), 200},
		{"HTTP/3, the same host", over3("public.example", "public.example"), 200},
		// quic-go refuses what RFC 9114 calls malformed.
		{"HTTP/3, another host", over3("public.example", "internal.example"), 0},
		{"HTTP/3, for the other host", over3("internal.example", "public.example"), 0},
		{"HTTP/3, no authority", over3("", "internal.example"), 0},
	} {
		status, body, err := test.ask()
		if status != test.want || (err == nil) != (test.want > 0) || strings.Contains(body, "internal") {
			t.Errorf("%s: got %d %q, %v, want %d", test.name, status, body, err, test.want)
		}
		seen := of.seen()
		if len(seen) != map[bool]int{true: 1}[test.want == http.StatusOK] || len(seen) > 0 && seen[0] != "public.example[]" {
			t.Errorf("%s: the app was asked for %q", test.name, seen)
		}
	}
}
