package supervisor

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// TestPolicies has two nodes that follow their policies over TLS, with HTTP/2 and with
// HTTP/1.1. Each gets its own. One is revoked, and its stream ends.
func TestPolicies(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/2": true, "HTTP/1.1": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			ended := make(chan string, 2)
			c.cfg.Policies = func(ctx context.Context, node string, send func(netpolicy.Update) error) error {
				if err := send(netpolicy.Update{Whole: true, Active: true, Pods: map[string]*netpolicy.Pod{"ns/" + node: {UID: "1"}}}); err != nil {
					return err
				}
				<-ctx.Done()
				ended <- node
				return nil
			}
			address := start(t, c)
			follow := func(node string) (nodestream.Stream[netpolicy.Update], chan netpolicy.Update) {
				transport := &http.Transport{TLSClientConfig: c.node(t, node).TLS(pki.NodeUser(node)), ForceAttemptHTTP2: http2}
				t.Cleanup(transport.CloseIdleConnections)
				return nodestream.Policies().From(&rest.Config{Host: "https://" + address, Transport: transport}), make(chan netpolicy.Update, 1)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			lost, lostUpdates := follow("lost")
			other, otherUpdates := follow("other")
			broke, stopped := make(chan error, 1), make(chan error, 1)
			go func() { broke <- lost(ctx, func(u netpolicy.Update) error { lostUpdates <- u; return nil }) }()
			go func() { stopped <- other(ctx, func(u netpolicy.Update) error { otherUpdates <- u; return nil }) }()
			for node, updates := range map[string]chan netpolicy.Update{"lost": lostUpdates, "other": otherUpdates} {
				if u := <-updates; !u.Whole || !u.Active || len(u.Pods) != 1 || u.Pods["ns/"+node] == nil {
					t.Errorf("node %s gets %v", node, u)
				}
			}
			if err := registration.Revoke(t.Context(), c.client, "lost"); err != nil {
				t.Fatal(err)
			}
			if err := <-broke; err == nil {
				t.Error("the stream of a revoked node ends without an error")
			}
			if node := <-ended; node != "lost" {
				t.Errorf("the stream of node %s ended", node)
			}
			if err := lost(ctx, func(netpolicy.Update) error { return nil }); err == nil || !strings.Contains(err.Error(), "401") {
				t.Errorf("a revoked node asks again: %v", err)
			}
			cancel()
			<-stopped
			if node := <-ended; node != "other" {
				t.Errorf("the stream of node %s ended", node)
			}
		})
	}
}

// TestNoStreams has servers that cannot tell a node anything.
func TestNoStreams(t *testing.T) {
	c := newCluster(t)
	edge := certificate(t, c.node(t, "edge"), pki.NodeUser("edge"))
	for _, path := range []string{nodestream.PoliciesPath, nodestream.RoutesPath, nodestream.OrdersPath} {
		ask := func() int {
			return c.call("GET", path, nil, func(r *http.Request) { r.TLS.PeerCertificates = edge }).Code
		}
		c.cfg.APIServers = nil
		if code := ask(); code != http.StatusNotFound {
			t.Errorf("%s: a server that knows nothing answers %d", path, code)
		}
		c.cfg.APIServers = func() []string { return nil }
		if code := ask(); code != http.StatusServiceUnavailable {
			t.Errorf("%s: a server without an API server answers %d", path, code)
		}
	}
}

// TestRoutesAndKeepAlive has a node that follows its routes. The update without changes is small.
func TestRoutesAndKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written strings.Builder
		s := &Supervisor{cfg: Config{Routes: func(_ context.Context, _ string, send func(routing.Update) error) error {
			if err := send(routing.Update{Whole: true, State: routing.State{Backends: map[string]*routing.Backend{"b": {Name: "b"}}}}); err != nil {
				return err
			}
			time.Sleep(nodestream.KeepAlive + time.Second)
			return send(routing.Update{State: routing.State{Backends: map[string]*routing.Backend{"b": nil}}})
		}}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, nodestream.RoutesPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		nodeStream(s, nodestream.Routes(), s.cfg.Routes).ServeHTTP(&slowWriter{Builder: &written}, r)
		if want := `{"whole":true,"backends":{"b":{"name":"b"}}}` + "\n{}\n" + `{"backends":{"b":null}}` + "\n"; written.String() != want {
			t.Errorf("got %q", written.String())
		}
	})
}

// TestKeepAlive wants updates without changes while nothing happens. They say the same
// about Active.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written strings.Builder
		w := &slowWriter{Builder: &written}
		s := &Supervisor{cfg: Config{Policies: func(ctx context.Context, _ string, send func(netpolicy.Update) error) error {
			time.Sleep(10 * nodestream.KeepAlive) // nothing is known yet
			if err := send(netpolicy.Update{Whole: true, Active: true}); err != nil {
				return err
			}
			time.Sleep(nodestream.KeepAlive*5/2 + time.Second)
			return errors.New("over")
		}}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, nodestream.PoliciesPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		nodeStream(s, nodestream.Policies(), s.cfg.Policies).ServeHTTP(w, r)
		want := `{"whole":true,"active":true}` + "\n" + strings.Repeat(`{"active":true}`+"\n", strings.Count(written.String(), "\n")-1)
		if lines := strings.Count(written.String(), "\n"); written.String() != want || lines < 3 || lines > 4 {
			t.Errorf("got %q", written.String())
		}
		if !w.deadline.IsZero() {
			t.Error("a deadline is left, which would end the stream")
		}
	})
}

// slowWriter is an http.ResponseWriter with deadlines.
type slowWriter struct {
	*strings.Builder
	deadline time.Time
}

func (*slowWriter) Header() http.Header                      { return http.Header{} }
func (*slowWriter) WriteHeader(int)                          {}
func (*slowWriter) Flush()                                   {}
func (w *slowWriter) SetWriteDeadline(until time.Time) error { w.deadline = until; return nil }

// TestStreams has a node that opens one stream after another.
func TestStreams(t *testing.T) {
	var s streams
	var contexts []context.Context
	var ends []func()
	for range maxStreams + 2 {
		ctx, end := s.begin(t.Context(), "/a", "edge")
		contexts, ends = append(contexts, ctx), append(ends, end)
	}
	other, endOther := s.begin(t.Context(), "/a", "other")
	another, endAnother := s.begin(t.Context(), "/b", "edge")
	for i, ctx := range contexts {
		if ended := ctx.Err() != nil; ended != (i < 2) {
			t.Errorf("stream %d has ended: %t", i, ended)
		}
	}
	if other.Err() != nil || another.Err() != nil {
		t.Error("the stream of another node, or of another kind, has ended")
	}
	for _, end := range append(ends, endOther, endAnother) {
		end()
	}
	if len(s.open) > 0 {
		t.Errorf("left are %v", s.open)
	}
}
