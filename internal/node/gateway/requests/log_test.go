package requests

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

func TestEntryString(t *testing.T) {
	e := Entry{
		Time: time.Unix(0, 0), Duration: 1500 * time.Microsecond, Client: netip.MustParseAddr("2001:db8::1"), Listener: "a/b/c",
		Route: "HTTPRoute/a/b", Backend: "a/b:80", Endpoint: "10.0.0.1:80", Method: "GET", Host: "example.org", Path: "/a\nb", Protocol: "HTTP/2.0",
		UserAgent: "x\" status=200 \x1b[0m" + strings.Repeat("é", maxLogged), Status: 404, Bytes: 12,
	}
	got := e.String()
	want := `time=1970-01-01T00:00:00.000Z client=2001:db8::1 listener=a/b/c route=HTTPRoute/a/b backend=a/b:80 endpoint=10.0.0.1:80 ` +
		`method=GET host=example.org path="/a\nb" protocol=HTTP/2.0 status=404 bytes=12 duration=0.001500 agent="x\" status=200 \x1b[0m\u00e9`
	if !strings.HasPrefix(got, want) || len(got) > 4*maxLogged || strings.ContainsAny(got, "\n\x1b") {
		t.Errorf("got %s", got)
	}
}

func TestAccessLog(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "HTTPRoute/a/r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusTeapot)
		_, _ = rw.Write([]byte("tea"))
	})
	w.ask("GET", "/a?secret=x", "User-Agent: test")
	w.ask("GET", "/%00")
	w.server.Close() // entries are complete after that
	if len(w.entries) != 2 {
		t.Fatalf("got %v", w.entries)
	}
	first, second := w.entries[0], w.entries[1]
	if first.Route != "HTTPRoute/a/r" || first.Backend != "b" || first.Endpoint != w.state.Backends["b"].Endpoints[0].String() ||
		first.Path != "/a" || first.Status != 418 || first.Bytes != 3 || first.Client.String() != "127.0.0.1" || first.UserAgent != "test" ||
		first.Listener != "all" || first.Method != "GET" || first.Host != "example.org" || first.Protocol != "HTTP/1.1" {
		t.Errorf("got %+v", first)
	}
	if second.Route != "" || second.Status != 400 {
		t.Errorf("got %+v", second)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	w := newWorld(t, &routing.Route{Name: "r1", Rules: []routing.Rule{to("/1", "b")}}, &routing.Route{Name: "r2", Rules: []routing.Rule{to("/2")}})
	w.requests.registerer, w.requests.metrics = registry, newCollector(&w.requests.table)
	registry.MustRegister(w.requests.metrics)
	w.backend("b", nil)
	for _, path := range []string{"/1", "/1", "/2", "/none"} {
		w.ask("GET", path)
	}
	w.server.Close()
	const total = "kedge_gateway_requests_total"
	if err := testutil.CollectAndCompare(w.requests.metrics, strings.NewReader(`
# HELP kedge_gateway_requests_total Requests that a route of a Gateway or an Ingress has taken, by the class of the status.
# TYPE kedge_gateway_requests_total counter
kedge_gateway_requests_total{code="2xx",route="r1"} 2
kedge_gateway_requests_total{code="5xx",route="r2"} 1
`), total); err != nil {
		t.Error(err)
	}
	// A route that changes keeps its counts. One that is gone has none.
	changed := *w.state.Routes["r1"]
	w.state.Routes = map[string]*routing.Route{"r1": &changed}
	w.set()
	if err := testutil.CollectAndCompare(w.requests.metrics, strings.NewReader(`
# HELP kedge_gateway_requests_total Requests that a route of a Gateway or an Ingress has taken, by the class of the status.
# TYPE kedge_gateway_requests_total counter
kedge_gateway_requests_total{code="2xx",route="r1"} 2
`), total); err != nil {
		t.Error(err)
	}
	if got := testutil.CollectAndCount(w.requests.metrics); got != 3 {
		t.Errorf("there are %d metrics", got)
	}
}
