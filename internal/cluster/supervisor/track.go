package supervisor

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
)

// connections keeps the open connections, including those that http.Server no longer
// knows because they were upgraded.
type connections struct {
	mu     sync.Mutex
	open   map[*connection]bool
	closed bool
}

// connection is one open connection. connections.mu guards the fields below all.
type connection struct {
	net.Conn
	all      *connections
	upgraded bool
	// node and registration are from the certificate that was shown. node is empty if it
	// is not a node's.
	node, registration string
}

// track returns a listener whose connections c keeps.
func (c *connections) track(l net.Listener) net.Listener { return &trackedListener{l, c} }

type trackedListener struct {
	net.Listener
	all *connections
}

func (l *trackedListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: raw, all: l.all}
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if l.all.closed {
		_ = raw.Close()
	} else {
		if l.all.open == nil {
			l.all.open = map[*connection]bool{}
		}
		l.all.open[conn] = true
	}
	return conn, nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// state implements http.Server.ConnState.
func (c *connections) state(conn net.Conn, state http.ConnState) {
	if state != http.StateActive && state != http.StateHijacked {
		return
	}
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return
	}
	tracked, ok := secured.NetConn().(*connection)
	if !ok {
		return
	}
	// A connection is active when its handshake is over.
	shown := secured.ConnectionState()
	c.mu.Lock()
	defer c.mu.Unlock()
	tracked.upgraded = state == http.StateHijacked
	if node, uid, ok := showsNode(&shown); ok {
		tracked.node, tracked.registration = node, uid
	}
}

// closeUpgraded closes the connections that http.Server no longer knows.
func (c *connections) closeUpgraded() { c.close(func(conn *connection) bool { return conn.upgraded }) }

// closeAll closes every connection, and each one that comes later.
func (c *connections) closeAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close(func(*connection) bool { return true })
}

func (c *connections) close(which func(*connection) bool) {
	c.mu.Lock()
	var chosen []*connection
	for conn := range c.open {
		if which(conn) {
			chosen = append(chosen, conn)
		}
	}
	c.mu.Unlock()
	for _, conn := range chosen {
		_ = conn.Close()
	}
}

// requests counts the requests that are being answered. It is not a sync.WaitGroup,
// because a request may come while wait waits for the others.
type requests struct {
	next http.Handler

	mu    sync.Mutex
	count int
	// none is closed when count falls to zero; nil when nobody waits.
	none chan struct{}
}

// ServeHTTP implements http.Handler.
func (r *requests) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.add(1)
	defer r.add(-1)
	r.next.ServeHTTP(w, request)
}

func (r *requests) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += n
	if r.count == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// wait waits until no request is being answered or ctx ends, and returns how
// many are left.
func (r *requests) wait(ctx context.Context) int {
	r.mu.Lock()
	if r.count == 0 {
		r.mu.Unlock()
		return 0
	}
	none := make(chan struct{})
	r.none = none
	r.mu.Unlock()
	select {
	case <-none:
		return 0
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// errorLog takes the messages of http.Server. A panic in a handler is kedge's error. All
// other messages are about clients. TLS handshakes fail all the time: port scans, health
// checks, clients with an old authority.
type errorLog struct{ log *logrus.Entry }

func (e *errorLog) Write(message []byte) (int, error) {
	text := strings.TrimSpace(string(message))
	switch {
	case strings.Contains(text, "TLS handshake error"):
	case strings.Contains(text, "panic serving"):
		e.log.Error(text)
	default:
		e.log.Debug(text)
	}
	return len(message), nil
}
