package sockets

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

const (
	// maxHeader is how many bytes the headers of a request may have.
	maxHeader = 64 << 10
	// maxStreams is how many requests a connection of HTTP/2 or HTTP/3 may have at once.
	maxStreams = 250
	// A request and a connection of HTTP/2 or HTTP/3 may have this many bytes that no handler
	// has read yet.
	streamWindow     = 256 << 10
	connectionWindow = 512 << 10
	// frameSize is how many bytes a frame of HTTP/2 may have, the least that the protocol allows. A connection gets memory for
	// a whole frame as soon as a client has sent its length.
	//
	//upstream:relies-on std/net/http/h2_bundle.go http2NewFramer http2Framer.ReadFrameForHeader
	frameSize = 16 << 10
	// pingAfter is how long a connection of HTTP/2 may be silent before it is asked whether it
	// still is there.
	pingAfter = 30 * time.Second
)

// queue is a net.Listener for connections that were accepted already.
type queue struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

func (q *queue) Addr() net.Addr { return q.address }

// serveHTTP serves HTTP/1.1, and HTTP/2 of clients that know that it is spoken here.
func (t *tcpSocket) serveHTTP(c *conn) {
	c.stall = t.patience.write
	t.hand(&talk{half: c, under: c, patience: t.patience.header})
}

// serveHTTPS serves HTTP/1.1 and HTTP/2 after the handshake of TLS.
func (t *tcpSocket) serveHTTPS(secure *tls.Conn, c *conn) {
	c.stall = t.patience.write
	if secure.ConnectionState().NegotiatedProtocol == "h2" {
		c.gather()
		t.hand(secure)
		return
	}
	t.hand(&secureTalk{talk{half: secure, under: c, patience: t.patience.header}, secure})
}

// hand gives a connection to the server of this socket, which starts with the first one.
func (t *tcpSocket) hand(c net.Conn) {
	t.httpMu.Lock()
	if t.httpClosed {
		t.httpMu.Unlock()
		_ = c.Close()
		return
	}
	if t.server == nil {
		t.queue = &queue{address: t.listener.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
		t.server = t.newServer()
		server, queue := t.server, t.queue
		t.working.Go(func() { _ = server.Serve(queue) })
	}
	queue := t.queue
	t.httpMu.Unlock()
	select {
	case queue.conns <- c:
	case <-queue.closed:
		_ = c.Close()
	}
}

func (t *tcpSocket) newServer() *http.Server {
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			t.answer(w, r, t.settings.Load(), t.draining.Load())
		}),
		ReadHeaderTimeout: t.patience.header,
		IdleTimeout:       t.patience.idle,
		MaxHeaderBytes:    maxHeader,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			hello := helloIn(c)
			if hello == nil {
				return ctx
			}
			handshake := new(hosts.Handshake)
			handshake.Decide(hello.listener.shownBy(hello.name))
			return handshake.In(ctx)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateActive {
				under(c).used.Store(true)
			}
			if talk := talkOf(c); talk != nil {
				talk.turn(state)
			}
		},
		Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter,
			MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connectionWindow, MaxReadFrameSize: frameSize,
		},
		ErrorLog: log.New(debugLog{t.log}, "", 0),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server
}

// debugLog writes what the HTTP servers report about clients. Anybody can make them report.
type debugLog struct{ log *logrus.Entry }

func (l debugLog) Write(line []byte) (int, error) {
	l.log.Debug(strings.TrimSpace(string(line)))
	return len(line), nil
}

// answer answers a request, within the limits.
func (s *Sockets) answer(w http.ResponseWriter, r *http.Request, settings *settings, draining bool) {
	var client netip.Addr
	if address, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		client = address.Addr().Unmap()
	}
	if !s.requests.take(client, settings.trusts(client)) {
		s.full(settings.name)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "The gateway has too many requests at this moment.", http.StatusServiceUnavailable)
		return
	}
	defer s.requests.give(client)
	switch {
	case r.ProtoMajor > 2:
	case draining || s.crowded():
		// HTTP/2 makes GOAWAY of it. A request that becomes a stream of another protocol has a
		// Connection header of its own.
		if r.Header.Get("Upgrade") == "" {
			w.Header().Set("Connection", "close")
		}
	case settings.altSvc != "" && r.TLS != nil:
		w.Header().Set("Alt-Svc", settings.altSvc)
	}
	w, end := s.patient(w, r)
	s.cfg.Serve(w, r, settings.name)
	end()
}

// patient bounds the time that a client may leave its side of a request untouched. Calls of
// gRPC are excepted: they may be silent for as long as they like. The returned function is called
// when the request was answered.
func (s *Sockets) patient(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func()) {
	isCall := strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
	control, end := http.NewResponseController(w), func() {}
	if r.Body != nil && r.Body != http.NoBody {
		end = s.watchBody(control, r, isCall)
	}
	if isCall || r.ProtoMajor == 1 {
		return w, end // A connection of HTTP/1 bounds its writes itself.
	}
	return &patientWriter{w, control, watch{limit: s.patience.stream, end: func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) }}}, end
}

// watchBody bounds each read of a body, except that of a call. The returned function bounds what
// the server of HTTP/1 does after that: it reads the rest of the body before it sends a short
// answer.
func (s *Sockets) watchBody(control *http.ResponseController, r *http.Request, isCall bool) (end func()) {
	limit := s.patience.stream
	if r.ProtoMajor == 1 {
		limit = s.patience.body
	}
	body := &patientBody{ReadCloser: r.Body}
	body.watch = watch{limit: limit, end: func() {
		body.late.Store(true)
		_ = control.SetReadDeadline(time.Unix(1, 0))
	}}
	if !isCall {
		r.Body = body
	}
	if r.ProtoMajor > 1 {
		return func() {}
	}
	return func() {
		if !body.late.Load() {
			_ = control.SetReadDeadline(time.Now().Add(s.patience.body))
		}
	}
}

// watch ends a read or a write that takes too long.
type watch struct {
	limit time.Duration
	end   func()
	timer *time.Timer // nil until the first one
}

// begin starts the time. The returned function stops it.
func (w *watch) begin() (stop func() bool) {
	if w.timer == nil {
		w.timer = time.AfterFunc(w.limit, w.end)
	} else {
		w.timer.Reset(w.limit)
	}
	return w.timer.Stop
}

// patientBody is the body of a request of which each read is watched.
type patientBody struct {
	io.ReadCloser
	watch watch
	late  atomic.Bool
}

// Late tells whether the client was silent for too long. It is true before a read fails for that.
func (b *patientBody) Late() bool { return b.late.Load() }

func (b *patientBody) Read(into []byte) (int, error) {
	defer b.watch.begin()()
	return b.ReadCloser.Read(into)
}

// patientWriter is an answer of which each write is watched.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	watch   watch
}

func (w *patientWriter) Write(bytes []byte) (int, error) {
	defer w.watch.begin()()
	return w.ResponseWriter.Write(bytes)
}

// FlushError is what http.ResponseController calls.
func (w *patientWriter) FlushError() error {
	defer w.watch.begin()()
	return w.control.Flush()
}

// Flush implements http.Flusher.
func (w *patientWriter) Flush() { _ = w.FlushError() }

// Unwrap is for http.ResponseController.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
