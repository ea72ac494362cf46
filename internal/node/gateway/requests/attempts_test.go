package requests

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatal("nothing has come")
	}
	return value
}

// TestTimeouts sees that a request ends by the timeout of the rule or of the attempt.
func TestTimeouts(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/whole", "b"), func(r *routing.Rule) { r.Timeout = 50 * time.Millisecond }),
		with(to("/attempt", "b"), func(r *routing.Rule) { r.BackendTimeout = 50 * time.Millisecond }),
		with(to("/backoff", "failing"), func(r *routing.Rule) {
			r.Timeout, r.Retry = 50*time.Millisecond, &routing.Retry{Codes: []int{503}, Attempts: 3, Backoff: time.Hour}
		}),
		with(to("/enough", "b"), func(r *routing.Rule) { r.Timeout, r.BackendTimeout = time.Hour, time.Hour }),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/enough" {
			<-r.Context().Done()
		}
	})
	w.backend("failing", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(503) })
	for path, want := range map[string]int{"/whole": 504, "/attempt": 504, "/backoff": 504, "/enough": 200} {
		if got := w.ask("GET", path); got.StatusCode != want {
			t.Errorf("%s: got %d, want %d", path, got.StatusCode, want)
		}
	}
}

// TestTimeoutOfAnswer sees that a timeout after the header breaks the answer off, so that nobody
// takes it for a whole one.
func TestTimeoutOfAnswer(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/", "b"), func(r *routing.Rule) { r.BackendTimeout = 100 * time.Millisecond }),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begun")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	response, err := http.Get(w.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err == nil || string(text) != "begun" {
		t.Errorf("got %q, %v", text, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestRetry has the cases of the conformance test HTTPRouteRetry, and repeats bodies.
func TestRetry(t *testing.T) {
	var mu sync.Mutex
	left := map[string]int{}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		with(to("/500-3", "b"), func(r *routing.Rule) { r.Retry = &routing.Retry{Codes: []int{500}, Attempts: 3} }),
		with(to("/all-2", "b"), func(r *routing.Rule) {
			r.Retry = &routing.Retry{Codes: []int{500, 502, 503, 504}, Attempts: 2, Backoff: time.Millisecond}
		}),
		with(to("/drop-2", "b"), func(r *routing.Rule) { r.Retry = &routing.Retry{Attempts: 2} }),
		with(to("/slow-1", "b"), func(r *routing.Rule) {
			r.BackendTimeout, r.Retry = 50*time.Millisecond, &routing.Retry{Attempts: 1}
		}),
		to("/no", "b"),
	}})
	w.backend("b", func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if left[r.URL.RawQuery]--; left[r.URL.RawQuery] < 0 {
			_, _ = rw.Write(body)
			return
		}
		switch {
		case strings.HasPrefix(r.URL.Path, "/drop"), r.URL.Path == "/no":
			panic(http.ErrAbortHandler)
		case strings.HasPrefix(r.URL.Path, "/slow"):
			<-r.Context().Done()
		default:
			rw.WriteHeader(map[byte]int{'0': 500, '2': 502, '3': 503, '4': 504}[r.URL.RawQuery[0]])
		}
	})
	large := strings.Repeat("x", maxReplay+1)
	for _, test := range []struct {
		method, path, query, body string
		failures, want            int
	}{
		{"GET", "/500-3", "0", "", 2, 200},
		{"GET", "/500-3", "0", "", 3, 200},
		{"GET", "/500-3", "0", "", 4, 500},
		{"GET", "/500-3", "3", "", 2, 503},
		{"GET", "/all-2", "0", "", 1, 200},
		{"GET", "/all-2", "2", "", 3, 502},
		{"GET", "/all-2", "3", "", 2, 200},
		{"GET", "/all-2", "4", "", 3, 504},
		{"POST", "/all-2", "4", "the body", 2, 200},
		{"POST", "/all-2", "4", large, 1, 504},
		{"POST", "/all-2", "4", large, 0, 200},
		{"POST", "/drop-2", "x", "the body", 2, 200},
		{"POST", "/drop-2", "x", "", 3, 502},
		{"GET", "/slow-1", "x", "", 1, 200},
		{"GET", "/slow-1", "x", "", 2, 504},
		{"POST", "/no", "x", "", 1, 502},
	} {
		mu.Lock()
		left[test.query] = test.failures
		mu.Unlock()
		var body io.Reader
		if test.body != "" {
			body = strings.NewReader(test.body)
		}
		got := w.send(test.method, test.path+"?"+test.query, body)
		if got.StatusCode != test.want || got.StatusCode == 200 && got.text != test.body {
			t.Errorf("%s %s?%s with %d failures: got %d, %d bytes, want %d", test.method, test.path, test.query, test.failures, got.StatusCode, len(got.text), test.want)
		}
	}
}

// TestDeadEndpoints sees that no request is lost while endpoints refuse connections.
func TestDeadEndpoints(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", nil)
	living := w.state.Backends["b"].Endpoints[0]
	w.state.Backends["b"] = &routing.Backend{Name: "b", Endpoints: []netip.AddrPort{deadAddress(t), living, deadAddress(t)}}
	w.set()
	for range 20 {
		got := w.send("POST", "/", strings.NewReader("the body"))
		if got.StatusCode != 200 || got.echo.Body != "the body" {
			t.Fatalf("got %d, %q", got.StatusCode, got.text)
		}
	}
	avoided := 0
	for _, e := range w.requests.backends["b"].service.Load().endpoints {
		if e.active.Load() != 0 {
			t.Errorf("%s has %d requests", e.host, e.active.Load())
		}
		if e.avoided.Load() != 0 {
			avoided++
		}
	}
	if avoided == 0 {
		t.Error("no dead endpoint is avoided")
	}
}

// TestClosedConnections sees that requests which change nothing are not lost when an endpoint
// closes a connection while they are on their way.
func TestClosedConnections(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	server := w.backend("b", nil)
	for range 20 {
		if got := w.ask("GET", "/"); got.StatusCode != 200 {
			t.Fatalf("got %d, %q", got.StatusCode, got.text)
		}
		server.CloseClientConnections()
	}
}

// TestUpdates sees that changes of endpoints lose no request: those in flight end where they
// began, and connections stay.
func TestUpdates(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "old")}})
	arrived, release := make(chan struct{}), make(chan struct{})
	w.backend("old", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "old")
		if r.URL.Path == "/slow" {
			_ = http.NewResponseController(rw).Flush()
			arrived <- struct{}{}
			<-release
			_, _ = io.WriteString(rw, " end")
		}
	})
	w.backend("new", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "new") })
	before := w.requests.backends["old"].service.Load().pool
	slow := make(chan string)
	go func() { slow <- w.ask("GET", "/slow").text }()
	receive(t, arrived)

	// The backend has another endpoint now.
	next := w.state.Backends["new"].Endpoints
	old := w.state.Backends["old"]
	w.state.Backends = map[string]*routing.Backend{"old": {Name: "old", Endpoints: next}}
	w.set()
	if got := w.ask("GET", "/"); got.text != "new" {
		t.Errorf("got %q", got.text)
	}
	if w.requests.backends["old"].service.Load().pool != before {
		t.Error("the connections of the backend are gone")
	}
	// It has none.
	w.state.Backends = map[string]*routing.Backend{"old": {Name: "old"}}
	w.set()
	if got := w.ask("GET", "/"); got.StatusCode != 503 {
		t.Errorf("got %d", got.StatusCode)
	}
	// It is gone, and the route with it.
	routes := w.state.Routes
	w.state.Backends, w.state.Routes = nil, nil
	w.set()
	if got := w.ask("GET", "/"); got.StatusCode != 404 || len(w.requests.backends) != 0 {
		t.Errorf("got %d, and %d backends", got.StatusCode, len(w.requests.backends))
	}
	// It comes back.
	w.state.Routes = routes
	w.set()
	if got := w.ask("GET", "/"); got.StatusCode != 500 {
		t.Errorf("got %d", got.StatusCode)
	}
	w.state.Backends = map[string]*routing.Backend{"old": old}
	w.set()
	if got := w.ask("GET", "/"); got.text != "old" {
		t.Errorf("got %q", got.text)
	}
	close(release)
	if got := receive(t, slow); got != "old end" {
		t.Errorf("the slow request got %q", got)
	}
}

// TestRollingUpdate replaces endpoints while many requests come. The old ones end at once, while
// requests are still on their way to them.
func TestRollingUpdate(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	old := w.backend("b", nil)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	var count atomic.Int64
	transport := &http.Transport{}
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				request, _ := http.NewRequest(http.MethodGet, w.server.URL, nil)
				response, err := transport.RoundTrip(request)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != 200 {
					t.Errorf("got %d", response.StatusCode)
				}
				count.Add(1)
			}
		})
	}
	for range 8 {
		from := count.Load()
		for deadline := time.Now().Add(patience); count.Load() < from+20 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		next := w.unlisted(echoing("b"))
		w.state.Backends = map[string]*routing.Backend{"b": {Name: "b", Endpoints: []netip.AddrPort{addressOf(next)}}}
		w.set()
		if err := old.Config.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		old = next
	}
	cancel()
	clients.Wait()
	transport.CloseIdleConnections()
}

// TestBodyIsBounded sees that a rule's bound holds, with and without an announced length.
func TestBodyIsBounded(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{with(to("/", "b"), func(r *routing.Rule) { r.MaxBody = 10 })}})
	w.backend("b", nil)
	for text, want := range map[string]int{"": 200, "0123456789": 200, "0123456789a": 413} {
		if got := w.send("POST", "/", strings.NewReader(text)); got.StatusCode != want {
			t.Errorf("%d bytes: got %d", len(text), got.StatusCode)
		}
		// A reader of another type has no length.
		if got := w.send("POST", "/", struct{ io.Reader }{strings.NewReader(text)}); got.StatusCode != want {
			t.Errorf("%d bytes in chunks: got %d", len(text), got.StatusCode)
		}
	}
	// The answer does not wait for the rest.
	for _, text := range []string{"Content-Length: 1000000\r\n\r\nx", "Transfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\nff\r\nx"} {
		if got := w.raw("POST / HTTP/1.1\r\nHost: a\r\n" + text); got != 413 {
			t.Errorf("%q: got %d", text, got)
		}
	}
}

// TestMirror sees that copies are the same as the request, and that their answers do not matter.
func TestMirror(t *testing.T) {
	mirror := func(backend string, numerator, denominator int) routing.Filter {
		return routing.Filter{Mirror: &routing.Mirror{Backend: backend, Numerator: numerator, Denominator: denominator}}
	}
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{
		filtered("/", mirror("m1", 1, 1), mirror("m2", 100, 100), mirror("m3", 0, 100), mirror("unknown", 1, 1),
			routing.Filter{RequestHeaders: &routing.Headers{Set: []routing.Header{{Name: "X-Set", Value: "set"}}}}),
	}})
	w.backend("b", nil)
	got := make(chan string, 100)
	for _, name := range []string{"m1", "m2", "m3"} {
		w.backend(name, func(rw http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got <- name + " " + r.Method + " " + r.RequestURI + " " + r.Header.Get("X-Set") + " " + string(body)
			rw.WriteHeader(500)
		})
	}
	for _, test := range []struct{ method, body string }{{"GET", ""}, {"POST", "the body"}} {
		if a := w.send(test.method, "/a?b=c", strings.NewReader(test.body)); a.StatusCode != 200 || a.echo.Body != test.body {
			t.Errorf("got %d, %q", a.StatusCode, a.text)
		}
		both := map[string]bool{receive(t, got): true, receive(t, got): true}
		for _, name := range []string{"m1", "m2"} {
			if want := name + " " + test.method + " /a?b=c set " + test.body; !both[want] {
				t.Errorf("%q is not in %v", want, both)
			}
		}
	}
	// A large body goes only to the backend.
	large := strings.Repeat("x", maxMirrored+1)
	if a := w.send("POST", "/", strings.NewReader(large)); a.echo.Body != large {
		t.Errorf("got %d bytes", len(a.echo.Body))
	}
	w.requests.Close()
	if len(got) > 0 {
		t.Errorf("there is one more: %.100q", <-got)
	}
}
