// Package requests serves the HTTP requests of Gateways and Ingresses on a node. Package gateway
// gives it what the server says (routing.State), and package sockets the requests. It chooses
// the route of each request, applies the filters of the route, and sends the request to an
// endpoint of a backend.
//
// A request goes through the files in this order: serve.go, table.go and match.go choose the
// rule, and guard.go refuses ambiguous paths; filters.go, cors.go, redirect.go and auth.go answer
// or change the request; attempts.go chooses endpoints and repeats; answer.go and upgrade.go bring
// back what the backend says.
//
// It is no httputil.ReverseProxy, which is made for one attempt and one backend. The handling
// of headers, trailers, informational answers and upgrades follows it.
package requests

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/dialing"
	"github.com/kedge-dev/kedge/internal/node/gateway/htpasswd"
)

// maxMirrors is how many mirrored requests there are at a time. Others are not mirrored.
const maxMirrors = 64

// Config is what New needs.
type Config struct {
	// Registerer gets the metrics, or is nil.
	Registerer prometheus.Registerer
	// AccessLog gets each request of sockets with an access log after its end, or is nil. It must
	// not block, and many goroutines call it.
	AccessLog func(*Entry)
	// Dial connects to endpoints. It is dialing.Plain if it is nil.
	Dial dialing.Dial
}

// Requests serves requests. All of its methods may be called at any time by any goroutine.
type Requests struct {
	accessLog  func(*Entry)
	registerer prometheus.Registerer
	metrics    collector
	passwords  *htpasswd.Checker
	buffers    sync.Pool
	mirrors    chan struct{}
	dial       dialing.Dial

	// closing ends what outlives its request.
	closing context.Context //nolint:containedctx // it is the lifetime of the object
	close   context.CancelFunc
	// background is what Close waits for. Nothing is added after close, by life.
	background sync.WaitGroup
	life       sync.Mutex

	table atomic.Pointer[table]

	mu       sync.Mutex // of Set
	backends map[string]*backend
}

// New returns a Requests that answers every request with 404, until Set is called.
func New(cfg Config) *Requests {
	q := &Requests{
		accessLog: cfg.AccessLog, registerer: cfg.Registerer, passwords: htpasswd.NewChecker(),
		mirrors: make(chan struct{}, maxMirrors), backends: map[string]*backend{},
	}
	if q.dial = cfg.Dial; q.dial == nil {
		q.dial = dialing.Plain
	}
	q.buffers.New = func() any { return new([copyBuffer]byte) }
	q.closing, q.close = context.WithCancel(context.Background())
	q.table.Store(&table{})
	q.metrics = newCollector(&q.table)
	if q.registerer != nil {
		// It fails only if the same metrics are registered already.
		_ = q.registerer.Register(q.metrics)
	}
	return q
}

// Set serves a state from now on. Requests that have begun go on as they began. Routes, sockets
// and backends that are the same pointers as in the state before are not compiled again.
func (q *Requests) Set(state *routing.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	// First come new endpoints, then the routes that may need them, and then what is gone.
	gone := len(q.backends)
	for name, source := range state.Backends {
		if source != nil {
			if q.backends[name] != nil {
				gone--
			}
			q.backend(name).set(source, state.Certificates, q.dial)
		}
	}
	next := newTable(state, q.table.Load(), func(source *routing.Route) *route {
		return compileRoute(source, q.backend, q.passwords)
	})
	q.table.Store(next)
	if gone > 0 {
		q.forget(state, next)
	}
}

// forget removes backends that are not in the state.
func (q *Requests) forget(state *routing.State, t *table) {
	used := map[*backend]bool{}
	for _, r := range t.routes {
		r.backends(func(b *backend) { used[b] = true })
	}
	for name, b := range q.backends {
		if state.Backends[name] == nil {
			b.unset()
			if !used[b] {
				delete(q.backends, name)
			}
		}
	}
}

// backend returns what stands for the backend of a name.
func (q *Requests) backend(name string) *backend {
	b := q.backends[name]
	if b == nil {
		b = &backend{}
		q.backends[name] = b
	}
	return b
}

// set makes requests go to the endpoints of a backend.
func (b *backend) set(source *routing.Backend, certificates map[string]*routing.Certificate, dial dialing.Dial) {
	var certificate *routing.Certificate
	if source.TLS != nil && source.TLS.ClientCertificate != "" {
		certificate = certificates[source.TLS.ClientCertificate]
	}
	before := b.service.Load()
	if before != nil && before.source == source && before.certificate == certificate {
		return
	}
	next := newService(source, certificate, before, dial)
	b.service.Store(next)
	if before != nil && before.pool != next.pool {
		before.pool.close()
	}
}

// unset makes the backend one that does not exist.
func (b *backend) unset() {
	if before := b.service.Swap(nil); before != nil {
		before.pool.close()
	}
}

// Close ends what goes on without a request: upgraded connections, mirrored requests, and
// connections to backends. It is called after the last call of Serve has returned, except for
// upgraded connections.
func (q *Requests) Close() {
	q.life.Lock()
	q.close()
	q.life.Unlock()
	q.Set(&routing.State{})
	q.background.Wait()
	if q.registerer != nil {
		q.registerer.Unregister(q.metrics)
	}
}
