package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/routing"
)

// acceptPause is how long a socket waits if the host has no room for one more connection.
const acceptPause = 20 * time.Millisecond

// listenLocked opens a socket. The error says what to do.
func (s *Sockets) listenLocked(key key, settings *settings) (opened socket, err error) {
	address := ":" + strconv.Itoa(int(key.port))
	switch {
	case key.transport == routing.TCP:
		opened, err = s.listenTCP(address, settings)
	case key.quic:
		opened, err = s.listenQUIC(address, settings)
	case key.transport == routing.UDP:
		opened, err = s.listenUDP(address, settings)
	default:
		return nil, fmt.Errorf("open port %s for %s: the transport is neither tcp nor udp", key, settings.name)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && s.oursLocked(key.String()):
		return nil, fmt.Errorf("open port %s for %s: connections of its former use have not ended yet. kedge tries again every %s", key, settings.name, retryInterval)
	case errors.Is(err, syscall.EADDRINUSE):
		taken := host.PortOwner(host.Port{Network: string(key.transport), Address: address})
		return nil, fmt.Errorf("open port %s for %s: %s has it. Stop it, or let it use another port. kedge tries again every %s", key, settings.name, taken, retryInterval)
	case err != nil:
		return nil, fmt.Errorf("open port %s for %s: %w. kedge tries again every %s", key, settings.name, err, retryInterval)
	}
	return opened, nil
}

// tcpSocket accepts connections of TCP.
type tcpSocket struct {
	*Sockets
	listener *net.TCPListener
	settings atomic.Pointer[settings]
	draining atomic.Bool
	// tls has the keys of session tickets. It lives as long as the socket, so that tickets
	// outlive changes of certificates.
	tls *tls.Config
	// ctx ends when connections must end.
	ctx    context.Context
	cancel context.CancelFunc
	tracker
	// working counts the goroutines of this socket.
	working sync.WaitGroup

	// accepting is closed when no more connections come.
	accepting chan struct{}

	httpMu     sync.Mutex
	queue      *queue // nil until the first connection of HTTP
	server     *http.Server
	httpClosed bool
}

func (s *Sockets) listenTCP(address string, settings *settings) (*tcpSocket, error) {
	config := net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}}
	// Without a host, Go listens on [::] for both families, or on 0.0.0.0 if the host has no
	// IPv6.
	listener, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	t := &tcpSocket{Sockets: s, listener: listener.(*net.TCPListener), accepting: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.tls = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: t.configFor}
	t.settings.Store(settings)
	t.working.Go(t.accept)
	return t, nil
}

func (t *tcpSocket) set(settings *settings) {
	if settings != nil {
		t.settings.Store(settings)
	}
}

func (t *tcpSocket) drain(on bool) { t.draining.Store(on) }

// accept takes connections until the listener is closed.
func (t *tcpSocket) accept() {
	defer close(t.accepting)
	for {
		raw, err := t.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// The client has gone, or the process has too many open files.
			t.notice("Cannot accept a connection of %s: %v", t.settings.Load().name, err)
			time.Sleep(acceptPause)
		default:
			t.take(raw)
		}
	}
}

// take begins to serve a connection.
func (t *tcpSocket) take(raw *net.TCPConn) {
	settings := t.settings.Load()
	peer := addressOf(raw.RemoteAddr())
	trusted := settings.trusts(peer)
	if !t.connections.take(peer, trusted) {
		t.full(settings.name)
		_ = raw.SetLinger(0) // The kernel need not remember it.
		_ = raw.Close()
		return
	}
	closed := t.metrics.opened(settings.name)
	c := &conn{Conn: raw, remote: raw.RemoteAddr(), suspect: settings.proxies && !trusted}
	c.atClose(func() {
		t.tracker.remove(c)
		t.connections.give(peer)
		closed()
	})
	if !t.tracker.add(c) {
		_ = c.Close()
		return
	}
	if settings.kind == kindHTTP && !settings.proxies {
		t.serveHTTP(c)
		return
	}
	t.working.Go(func() { t.serve(c, settings, peer, trusted) })
}

// serve does what needs to wait for bytes of the client.
func (t *tcpSocket) serve(c *conn, settings *settings, peer netip.Addr, trusted bool) {
	if settings.proxies && trusted {
		_ = c.SetReadDeadline(time.Now().Add(t.patience.header))
		if err := c.readHeader(); err != nil {
			t.log.Debugf("Close a connection of %s from %s: %v", settings.name, peer, err)
			_ = c.Close()
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		// The proxy has no limit of its own, but its clients have.
		client := addressOf(c.remote)
		if !t.proxied.take(client, false) {
			t.full(settings.name)
			_ = c.Close()
			return
		}
		c.atClose(func() { t.proxied.give(client) })
	}
	switch settings.kind {
	case kindHTTP:
		t.serveHTTP(c)
	case kindTLS:
		t.serveTLS(c, settings)
	case kindStream:
		t.copyStream(c, nil, settings.stream, nil)
	}
}

// end implements socket.
func (t *tcpSocket) end(grace, patience time.Duration) {
	t.draining.Store(true)
	_ = t.listener.Close()
	<-t.accepting
	none := t.tracker.waiting()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	// A request on a new or on an idle connection may be on its way.
	select {
	case <-none:
	case <-ctx.Done():
	case <-time.After(grace):
	}
	// Now idle connections are closed. HTTP/2 says GOAWAY also on these. The server does not
	// count a new connection as idle, but browsers make some for requests that never come.
	t.tracker.closeIf(func(c *conn) bool { return !c.used.Load() })
	t.httpMu.Lock()
	server := t.server
	t.httpMu.Unlock()
	if server != nil {
		_ = server.Shutdown(ctx)
	}
	select {
	case <-none:
	case <-ctx.Done():
	}
	t.cancel()
	t.tracker.end()
	t.httpMu.Lock()
	t.httpClosed = true // also for a handshake that ends at this moment
	if t.server != nil {
		_ = t.server.Close()
	}
	t.httpMu.Unlock()
	t.working.Wait()
}
