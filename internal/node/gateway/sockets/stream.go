package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// mostDials is how many endpoints are tried for one connection.
const mostDials = 3

// errNoBackend says that the target which the weights have chosen has no endpoint.
var errNoBackend = errors.New("no backend")

// endpoints returns the backend of a target, and its endpoints in the order to try them. There
// are none if connections to it are closed.
func (s *Sockets) endpoints(split *routing.Split) (*routing.Backend, []netip.AddrPort) {
	target := choose(split)
	if target == nil || target.Fault != 0 {
		return nil, nil
	}
	backend := s.state.Load().Backends[target.Backend]
	if backend == nil || len(backend.Endpoints) == 0 {
		return nil, nil
	}
	n := min(len(backend.Endpoints), mostDials)
	first := rand.IntN(len(backend.Endpoints))
	found := make([]netip.AddrPort, n)
	for i := range found {
		found[i] = backend.Endpoints[(first+i)%len(backend.Endpoints)]
	}
	return backend, found
}

// choose returns a target by the weights, or nil if all weights are zero.
func choose(split *routing.Split) *routing.Target {
	if split == nil {
		return nil
	}
	total := 0
	for i := range split.Targets {
		total += max(0, split.Targets[i].Weight)
	}
	if total <= 0 {
		return nil
	}
	n := rand.IntN(total)
	for i := range split.Targets {
		if n -= max(0, split.Targets[i].Weight); n < 0 {
			return &split.Targets[i]
		}
	}
	return nil
}

// reachable tells whether any connection to a split can succeed. If none can, clients see
// that before a handshake of TLS.
func (s *Sockets) reachable(split *routing.Split) bool {
	for i := range split.Targets {
		target := &split.Targets[i]
		if target.Weight <= 0 || target.Fault != 0 {
			continue
		}
		if backend := s.state.Load().Backends[target.Backend]; backend != nil && len(backend.Endpoints) > 0 {
			return true
		}
	}
	return false
}

// errCrowded says that the backends of a namespace have too many streams.
var errCrowded = errors.New("the backends of the namespace have too many streams")

// upstream is a connection to a backend. Its half speaks TLS if the backend does.
type upstream struct {
	half
	raw *net.TCPConn
	// ended counts the stream no longer.
	ended func()
}

// Close closes the connection. It is called once.
func (u *upstream) Close() error {
	u.ended()
	return u.half.Close()
}

// dial connects to an endpoint of a target. If one does not answer, it tries the next. If the
// TLS of the client ends here, a backend that wants TLS gets it anew. Otherwise the backend gets
// what the client sends.
func (s *Sockets) dial(ctx context.Context, split *routing.Split, ended bool) (*upstream, error) {
	backend, endpoints := s.endpoints(split)
	if backend == nil {
		return nil, fmt.Errorf("connect to backend: %w", errNoBackend)
	}
	var security *tls.Config
	if ended && backend.TLS != nil {
		security = s.backends.config(backend, s.state.Load())
	}
	namespace := namespaceOf(backend)
	if !s.streams.take(namespace) {
		return nil, fmt.Errorf("connect to backend: %w", errCrowded)
	}
	err := errNoBackend
	for _, endpoint := range endpoints {
		var c *upstream
		if c, err = s.dialEndpoint(ctx, endpoint, security); err == nil {
			c.ended = func() { s.streams.give(namespace) }
			return c, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	s.streams.give(namespace)
	return nil, fmt.Errorf("connect to backend: %w", err)
}

// dialEndpoint connects to an endpoint, by TLS if security is not nil.
func (s *Sockets) dialEndpoint(ctx context.Context, endpoint netip.AddrPort, security *tls.Config) (*upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience.dial)
	defer cancel()
	c, err := s.cfg.Dial(ctx, "tcp", endpoint)
	if err != nil {
		return nil, err
	}
	raw := c.(*net.TCPConn)
	if security == nil {
		return &upstream{half: raw, raw: raw}, nil
	}
	secure := tls.Client(raw, security)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("TLS with %s: %w", endpoint, err)
	}
	return &upstream{half: secure, raw: raw}, nil
}

// half is one end of a stream. Both *net.TCPConn and *tls.Conn are one.
type half interface {
	net.Conn
	CloseWrite() error
}

// copyStream connects a client with a backend until both have said their last, and closes c.
// secure is the client's side of TLS that ends here, or nil. first are bytes of the client that
// were read already.
func (t *tcpSocket) copyStream(c *conn, secure *tls.Conn, split *routing.Split, first []byte) {
	defer func() { _ = c.Close() }()
	c.used.Store(true)
	// The kernel copies between two TCP connections by itself.
	var client half = c.Conn.(*net.TCPConn)
	if secure != nil {
		client = secure
	}
	backend, err := t.dial(t.ctx, split, secure != nil)
	if errors.Is(err, errCrowded) {
		t.full(t.settings.Load().name)
	}
	if err != nil {
		t.log.Debugf("Close the connection of %s to %s: %v", c.RemoteAddr(), t.settings.Load().name, err)
		return
	}
	defer func() { _ = backend.Close() }()
	pair := &pair{client: client, backend: backend.half, under: [2]net.Conn{c, backend.raw}, quiet: t.patience.quiet}
	done := make(chan struct{})
	t.working.Go(func() {
		defer close(done)
		pair.copy(client, backend.half, fromBackend)
	})
	if err := pair.begin(c, first); err != nil {
		pair.close()
	} else {
		pair.copy(backend.half, client, fromClient)
	}
	<-done
	if secure != nil {
		_ = secure.Close() // says close_notify
	}
}

// pair is a stream between a client and a backend.
type pair struct {
	client, backend half
	under           [2]net.Conn // both without TLS
	quiet           time.Duration
	// silent says of each direction that it has carried nothing for a while.
	silent [2]atomic.Bool
}

// direction is an index of pair.silent.
type direction int

const (
	fromClient direction = iota
	fromBackend
)

// begin gives the backend what was read already, and makes sure that a client behind no
// proxy does not pretend to be one.
func (p *pair) begin(c *conn, first []byte) error {
	if len(first) > 0 {
		if _, err := p.backend.Write(first); err != nil {
			return err
		}
	}
	if c.suspect {
		if err := c.SetReadDeadline(time.Now().Add(p.quiet)); err != nil {
			return err
		}
		if err := c.inspect(); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	if len(c.before) == 0 {
		return nil
	}
	before := c.before
	c.before = nil
	_, err := p.backend.Write(before)
	return err
}

// copy copies one direction until its end, and then says so to the other side. If anything
// fails, it closes both sides.
func (p *pair) copy(to, from half, way direction) {
	for {
		// The deadline is not moved by each byte: the kernel may copy without Go. So a stream is
		// quiet for one to two times the limit before it is closed.
		_ = from.SetReadDeadline(time.Now().Add(p.quiet))
		n, err := io.Copy(to, from)
		if err == nil {
			p.silent[way].Store(true)
			if to.CloseWrite() != nil {
				p.close()
			}
			return
		}
		p.silent[way].Store(n == 0)
		if !errors.Is(err, os.ErrDeadlineExceeded) || p.silent[1-way].Load() && n == 0 {
			p.close()
			return
		}
	}
}

// close closes both sides at once, without waiting for a write of TLS.
func (p *pair) close() {
	for _, c := range p.under {
		_ = c.Close()
	}
}
