// Package sockets is the part of a node's gateway between the kernel and HTTP requests. It
// listens on the ports of a routing.State, ends TLS, speaks HTTP/1.1, HTTP/2 and HTTP/3,
// and copies streams of TLS, TCP and UDP to their backends. The node/gateway component runs
// it. HTTP requests go to the function Config.Serve.
//
// A connection is never closed because a state has changed: each connection looks at the
// newest settings of its socket. All that strangers can fill is bounded: connections and
// requests in all and of each client (limits.go), the time and the bytes until a client has
// said what it wants, and the time that a client may leave data unread.
package sockets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/dialing"
)

// retryInterval is how often a socket is tried again that could not be opened.
const retryInterval = 3 * time.Second

// Config is what New needs.
type Config struct {
	// Serve answers a request that came through the socket with this name. The TLS field of
	// a request is nil if the client speaks no TLS. Its RemoteAddr is the client's, also
	// behind a proxy that speaks the PROXY protocol.
	Serve func(w http.ResponseWriter, r *http.Request, socket string)
	// Dial connects to endpoints. It is dialing.Plain if it is nil.
	Dial dialing.Dial
	Log  *logrus.Entry
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
	// Notice is how long a socket that is no longer in the state still accepts connections
	// while it asks its clients to connect elsewhere. It is the time that a load balancer needs
	// to learn of it.
	Notice time.Duration
	// Patience is how long requests and streams may last after the socket has closed.
	Patience time.Duration
	// MaxConnections is how many connections, sessions of UDP and, separately, requests
	// there may be. MaxPerClient is how many of these one client may have. Zero means what
	// fits the memory of the host.
	MaxConnections int
	MaxPerClient   int
}

// Sockets keeps the sockets of a State open.
type Sockets struct {
	cfg         Config
	log         *logrus.Entry
	patience    patience
	connections *limit
	// proxied counts the connections of clients that a header of the PROXY protocol names.
	proxied  *limit
	requests *limit
	// streams counts the streams and sessions of UDP to the backends of each namespace.
	streams  *shares
	metrics  *metrics
	changes  loop.Changes
	backends encryptions
	// state is the newest one. Connections find their backends in it.
	state atomic.Pointer[routing.State]
	// noticed is when notice has warned, in nanoseconds since 1970.
	noticed atomic.Int64

	mu           sync.Mutex
	closed       bool
	draining     bool
	open         map[key]*entry
	failed       map[key]string // the last message about each
	retry        *time.Timer
	certificates certificates
	// reported are messages about settings that the newest state still deserves.
	reported map[string]bool
	// ending counts the sockets that have closed and wait for their connections. endingPorts
	// are their ports.
	ending      sync.WaitGroup
	endingPorts map[string]int
}

// key is what makes a socket another one.
type key struct {
	transport routing.Transport
	port      uint16
	quic      bool
}

// String is such as "443/tcp".
func (k key) String() string { return fmt.Sprintf("%d/%s", k.port, k.transport) }

// entry is a socket that is open.
type entry struct {
	socket
	name string // as in the state
	// leaving is the timer that ends a socket that is no longer wanted, or nil.
	leaving *time.Timer
}

// socket is an open socket: one of TCP, of QUIC or of UDP.
type socket interface {
	// set replaces the settings. They are nil if only endpoints have changed.
	set(*settings)
	// drain says whether clients are asked to connect elsewhere. The socket still accepts.
	drain(bool)
	// end closes the socket. Idle connections stay open for grace. Then end waits for what is
	// in flight, and closes all when patience has ended. It returns when no goroutine of the
	// socket is left.
	end(grace, patience time.Duration)
}

// New returns Sockets that listen once Set was called. Run closes them.
func New(cfg Config) *Sockets {
	if cfg.MaxConnections <= 0 {
		memory, _ := host.Memory() // or zero, as on the smallest host
		files := unix.Rlimit{Cur: mostConnections * fileShare}
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
		cfg.MaxConnections = connectionsFor(memory, files.Cur)
	}
	if cfg.MaxPerClient <= 0 {
		cfg.MaxPerClient = max(1, cfg.MaxConnections/clientShare)
	}
	if cfg.Dial == nil {
		cfg.Dial = dialing.Plain
	}
	s := &Sockets{
		cfg: cfg, log: cfg.Log, patience: defaultPatience,
		connections: newLimit(cfg.MaxConnections, cfg.MaxPerClient),
		proxied:     newLimit(cfg.MaxConnections, cfg.MaxPerClient),
		requests:    newLimit(cfg.MaxConnections, cfg.MaxPerClient),
		streams:     &shares{each: max(1, cfg.MaxConnections/namespaceShare)},
		metrics:     newMetrics(cfg.Registerer),
		changes:     loop.NewChanges(),
		open:        map[key]*entry{}, failed: map[key]string{}, certificates: certificates{},
		endingPorts: map[string]int{},
	}
	s.state.Store(&routing.State{})
	return s
}

// Set makes state what is served. The sockets of the state are open when Set returns, except those
// that cannot be opened.
func (s *Sockets) Set(state *routing.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.state.Swap(state)
	s.backends.keep(state)
	if s.closed {
		return
	}
	if sameSettings(old, state) {
		// Only endpoints have changed, as they mostly do. Sockets find these in the state.
		for _, e := range s.open {
			e.set(nil)
		}
		return
	}
	s.reconcileLocked()
}

// sameSettings tells whether two states differ only in their backends. An unchanged part of
// a state keeps its address.
func sameSettings(a, b *routing.State) bool {
	return maps.Equal(a.Sockets, b.Sockets) && maps.Equal(a.Routes, b.Routes) && maps.Equal(a.Certificates, b.Certificates)
}

// Run waits until ctx ends. Then it closes the sockets and all idle connections at
// once. It returns when requests and streams have ended, at the latest after Config.Patience.
// Who wants clients to go elsewhere before that calls Drain and waits. It runs at most once.
func (s *Sockets) Run(ctx context.Context) {
	<-ctx.Done()
	s.mu.Lock()
	s.closed = true
	if s.retry != nil {
		s.retry.Stop()
	}
	for key, e := range s.open {
		// A request that comes now cannot be told from one that comes too late.
		s.closeLocked(key, e, 0)
	}
	s.mu.Unlock()
	s.changes.Notify()
	s.ending.Wait()
}

// Drain asks the clients of all sockets to connect elsewhere: answers of HTTP/1.1 close
// their connection, and HTTP/2 says GOAWAY. The sockets still accept, until the context of Run
// ends.
func (s *Sockets) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for _, e := range s.open {
		e.drain(true)
	}
}

// Listening returns the sockets that are open and wanted, as PORT/TRANSPORT, sorted.
func (s *Sockets) Listening() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.open))
	for key, e := range s.open {
		if e.leaving == nil {
			names = append(names, key.String())
		}
	}
	slices.Sort(names)
	return names
}

// Changes receives a value after Listening has changed.
func (s *Sockets) Changes() <-chan struct{} { return s.changes }

// reconcileLocked opens and closes sockets so that those of the state are open.
func (s *Sockets) reconcileLocked() {
	wanted := s.compileLocked()
	changed := false
	for key, e := range s.open {
		if wanted[key] == nil && e.leaving == nil {
			s.leaveLocked(key, e)
			changed = true
		}
	}
	failed := map[key]string{}
	for _, key := range slices.SortedFunc(maps.Keys(wanted), key.compare) {
		settings := wanted[key]
		if e := s.open[key]; e != nil {
			e.set(settings)
			e.name = settings.name
			if e.leaving != nil {
				e.leaving.Stop()
				e.leaving = nil
				e.drain(s.draining)
				changed = true
			}
			continue
		}
		opened, err := s.listenLocked(key, settings)
		if err != nil {
			failed[key] = err.Error()
			if s.failed[key] != err.Error() {
				s.log.Warn(err)
			}
			continue
		}
		if s.failed[key] != "" {
			s.log.Infof("Port %s is open for %s now", key, settings.name)
		}
		opened.drain(s.draining)
		s.open[key] = &entry{socket: opened, name: settings.name}
		changed = true
	}
	s.failed = failed
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	if len(failed) > 0 {
		s.retry = time.AfterFunc(retryInterval, s.tryAgain)
	}
	if changed {
		s.changes.Notify()
	}
}

// tryAgain opens what could not be opened.
func (s *Sockets) tryAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.reconcileLocked()
	}
}

// compare orders keys, so that messages about them come in an order.
func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.port, other.port), strings.Compare(string(k.transport), string(other.transport)))
}

// leaveLocked drains a socket that is no longer wanted, and ends it when Notice has passed, unless
// it is wanted again.
func (s *Sockets) leaveLocked(key key, e *entry) {
	e.drain(true)
	e.leaving = time.AfterFunc(s.cfg.Notice, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[key] == e && e.leaving != nil {
			s.closeLocked(key, e, s.patience.grace)
		}
	})
}

// closeLocked ends a socket in a goroutine of its own.
func (s *Sockets) closeLocked(key key, e *entry, grace time.Duration) {
	if e.leaving != nil {
		e.leaving.Stop()
	}
	delete(s.open, key)
	port, patience := key.String(), s.cfg.Patience
	s.endingPorts[port]++
	s.ending.Go(func() {
		e.end(grace, patience)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.endingPorts[port]--; s.endingPorts[port] == 0 {
			delete(s.endingPorts, port)
		}
		for _, other := range s.open {
			if other.name == e.name {
				return
			}
		}
		s.metrics.forget(e.name)
	})
}

// oursLocked tells whether a port belongs to a socket that is about to end.
func (s *Sockets) oursLocked(port string) bool {
	for key := range s.open {
		if key.String() == port {
			return true
		}
	}
	return s.endingPorts[port] > 0
}
