package requests

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestHostBesideAuthority sends a Host header beside the :authority. Backends and mirrors get the
// host that has chosen the rule, whatever filters change, or the one that a filter names.
func TestHostBesideAuthority(t *testing.T) {
	named := func(name, value string) []routing.Header { return []routing.Header{{Name: name, Value: value}} }
	changing := func(path string, h routing.Headers) routing.Rule {
		return filtered(path, routing.Filter{RequestHeaders: &h})
	}
	w := newWorld(t, &routing.Route{Name: "r", Hostnames: []string{"public.example"}, Rules: []routing.Rule{
		filtered("/none"),
		changing("/set", routing.Headers{Set: named("X-A", "a")}),
		changing("/add", routing.Headers{Add: named("X-A", "a")}),
		changing("/remove", routing.Headers{Remove: []string{"X-A"}}),
		changing("/set-host", routing.Headers{Set: named("host", "filter.example")}),
		changing("/add-host", routing.Headers{Add: named("HOST", "filter.example")}),
		changing("/remove-host", routing.Headers{Remove: []string{"Host"}}),
		filtered("/rewrite", routing.Filter{Rewrite: &routing.Rewrite{Hostname: "filter.example"}}),
		filtered("/mirror", routing.Filter{Mirror: &routing.Mirror{Backend: "copy", Numerator: 1, Denominator: 1}}, routing.Filter{RequestHeaders: &routing.Headers{Set: named("X-A", "a")}}),
		with(to("/target", "b"), func(r *routing.Rule) {
			r.Targets[0].Filters = []routing.Filter{{RequestHeaders: &routing.Headers{Set: named("X-A", "a")}}}
		}),
		with(to("/matched", "b"), func(r *routing.Rule) {
			r.Matches[0].Headers = []routing.Field{{Type: routing.Exact, Name: "Host", Value: "internal.example"}}
		}),
	}})
	got, copies := make(chan *http.Request, 1), make(chan *http.Request, 1)
	w.backend("b", func(_ http.ResponseWriter, r *http.Request) { got <- r })
	w.backend("copy", func(_ http.ResponseWriter, r *http.Request) { copies <- r })
	for path, want := range map[string]string{
		"/none": "public.example", "/set": "public.example", "/add": "public.example", "/remove": "public.example",
		"/set-host": "filter.example", "/add-host": "filter.example", "/remove-host": "public.example", "/rewrite": "filter.example",
		"/mirror": "public.example", "/target": "public.example",
	} {
		for _, major := range []int{2, 3} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host, r.ProtoMajor, r.ProtoMinor = "public.example", major, 0
			r.Header.Set("Host", "internal.example")
			if answer := w.record(r); answer.Code != http.StatusOK {
				t.Fatalf("%s: %d", path, answer.Code)
			}
			wantHost(t, path, receive(t, got), want)
			if path == "/mirror" {
				wantHost(t, "the copy of "+path, receive(t, copies), want)
			}
		}
		if status := w.rawHTTP2(t, "public.example", path, "host", "internal.example"); status != http.StatusOK {
			t.Fatalf("%s: %d", path, status)
		}
		wantHost(t, path+" with HTTP/2", receive(t, got), want)
		if path == "/mirror" {
			wantHost(t, "the copy of "+path, receive(t, copies), want)
		}
	}
	if status := w.rawHTTP2(t, "public.example", "/matched", "host", "internal.example"); status != http.StatusNotFound {
		t.Errorf("a rule for the host of a header takes the request: %d", status)
	}
	// In HTTP/1.1, the host of an absolute target counts.
	if status := w.raw("GET http://public.example/set HTTP/1.1\r\nHost: internal.example\r\nConnection: close\r\n\r\n"); status != 200 {
		t.Errorf("an absolute target: %d", status)
	}
	wantHost(t, "an absolute target", receive(t, got), "public.example")
	if status := w.raw("GET /set HTTP/1.1\r\nHost: public.example\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"); status != 200 {
		t.Errorf("an upgrade: %d", status)
	}
	wantHost(t, "an upgrade", receive(t, got), "public.example")
}

func wantHost(t *testing.T, what string, r *http.Request, want string) {
	t.Helper()
	if forwarded := r.Header.Get("X-Forwarded-Host"); r.Host != want || len(r.Header["Host"]) > 0 || forwarded != "public.example" {
		t.Errorf("%s: the backend gets the host %q (%q, forwarded for %q), want %q", what, r.Host, r.Header["Host"], forwarded, want)
	}
}

// rawHTTP2 sends a request with headers that no client library sends, and returns the status.
func (w *world) rawHTTP2(t *testing.T, authority, path string, headers ...string) int {
	t.Helper()
	conn, err := net.Dial("tcp", w.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	status, _, err := testutil.RawHTTP2(conn, append([]string{":method", "GET", ":scheme", "http", ":path", path, ":authority", authority}, headers...)...)
	if err != nil {
		t.Fatalf("%s%s: %v", authority, path, err)
	}
	return status
}
