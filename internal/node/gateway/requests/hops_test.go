package requests

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestLoop sends requests round a gateway that is its own backend, also with a mirror, and with
// filters that remove the count.
func TestLoop(t *testing.T) {
	for name, test := range map[string]struct {
		filters []routing.Filter
		rounds  int64
	}{
		"plain":       {nil, maxHops + 1},
		"removed":     {[]routing.Filter{{RequestHeaders: &routing.Headers{Remove: []string{"kedge-hops"}}}}, maxHops + 1},
		"overwritten": {[]routing.Filter{{RequestHeaders: &routing.Headers{Set: []routing.Header{{Name: "kedge-hops", Value: "0"}}}}}, maxHops + 1},
		// The request is copied at the first two gateways that it and its copies come to.
		"mirrored": {[]routing.Filter{{Mirror: &routing.Mirror{Backend: "self", Numerator: 1, Denominator: 1}}}, 4*(maxHops-1) + 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{with(to("/", "self"), func(r *routing.Rule) { r.Filters = test.filters })}})
			var rounds atomic.Int64
			serve := w.server.Config.Handler
			w.backend("self", func(rw http.ResponseWriter, r *http.Request) {
				rounds.Add(1)
				serve.ServeHTTP(rw, r)
			})
			got := w.ask("GET", "/", "Connection: Kedge-Hops")
			if got.StatusCode != http.StatusLoopDetected {
				t.Errorf("got %d", got.StatusCode)
			}
			w.requests.Close() // waits for the copies
			if count := 1 + rounds.Load(); count > test.rounds {
				t.Errorf("%d requests of at most %d", count, test.rounds)
			}
		})
	}
}

// TestHopsOfClients sees that what a client says about hops ends at most its own request.
func TestHopsOfClients(t *testing.T) {
	w := newWorld(t, &routing.Route{Name: "r", Rules: []routing.Rule{to("/", "b")}})
	w.backend("b", nil)
	for said, want := range map[string]string{"": "1", "3": "4", "9": "10", "10": "", "255": "", "256": "1", "-1": "1", "x": "1", "1, 2": "1"} {
		var headers []string
		if said != "" {
			headers = []string{"kedge-hops: " + said}
		}
		got := w.ask("GET", "/", headers...)
		status := http.StatusOK
		if want == "" {
			status = http.StatusLoopDetected
		}
		if passed := got.echo.Header.Get(hopsHeader); got.StatusCode != status || passed != want || got.Header.Get(hopsHeader) != "" {
			t.Errorf("%q: got %d with %q (%s)", said, got.StatusCode, passed, fmt.Sprint(got.Header))
		}
	}
}
