package sockets

import (
	"crypto/tls"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// longestHello is how many bytes the ClientHello of a connection may have that goes on to a
// backend, with the headers of its records. The largest of today's clients, with keys for
// post-quantum algorithms, have about 2 KiB.
const longestHello = 32 << 10

var (
	// errUndecided is never shown to anybody: it ends a handshake that a backend goes on with,
	// or that nobody answers.
	errUndecided = errors.New("this handshake is not answered here")
	errLongHello = errors.New("the ClientHello is too long")
)

// hello is a connection until its ClientHello is read. The handshake itself reads it, so
// that there is only one parser, and the one of crypto/tls.
type hello struct {
	*conn
	settings *settings
	// recorded are the bytes so far, for a backend. It is only written if recording.
	recorded  []byte
	recording bool
	// name is the server name, and listener is what serves the connection. It is nil until the
	// ClientHello was read, and if no listener wants it.
	name     hosts.Name
	listener *tlsListener
	route    *routing.Route
	// challenge says that the client is an ACME authority.
	challenge bool
	// muted drops the alert of a handshake that is not answered.
	muted bool
}

// Read implements net.Conn.
func (h *hello) Read(into []byte) (int, error) {
	n, err := h.conn.Read(into)
	if h.recording {
		if len(h.recorded)+n > longestHello {
			return 0, errLongHello
		}
		h.recorded = append(h.recorded, into[:n]...)
	}
	return n, err
}

// Write implements net.Conn.
func (h *hello) Write(bytes []byte) (int, error) {
	if h.muted {
		return len(bytes), nil
	}
	return h.conn.Write(bytes)
}

// configFor implements tls.Config.GetConfigForClient. It decides which listener serves a
// connection.
func (t *tcpSocket) configFor(info *tls.ClientHelloInfo) (*tls.Config, error) {
	h := info.Conn.(*hello)
	h.recording = false
	name, listener := h.settings.decide(info)
	if len(info.SupportedProtos) == 1 && info.SupportedProtos[0] == acmeProtocol {
		if config, ok := h.settings.challenges.Best(name); ok {
			h.challenge = true
			return config, nil
		}
	}
	if listener == nil {
		h.muted = h.settings.silent
		return unknown(false), nil
	}
	h.name = name
	if listener.protocol == routing.HTTPS {
		h.listener, h.recorded = listener, nil
		return listener.config, nil
	}
	route, ok := listener.routes.Best(name)
	if !ok || !t.reachable(route.Stream) {
		h.muted = true
		return nil, errUndecided
	}
	h.listener, h.route = listener, route
	if listener.protocol == routing.TLSPassthrough {
		h.muted = true
		return nil, errUndecided
	}
	h.recorded = nil
	return listener.config, nil
}

// serveTLS reads the ClientHello and serves the connection as its listener wants.
func (t *tcpSocket) serveTLS(c *conn, settings *settings) {
	h := &hello{conn: c, settings: settings, recording: settings.records}
	_ = c.SetDeadline(time.Now().Add(t.patience.header))
	secure := tls.Server(h, t.tls)
	err := secure.Handshake()
	switch {
	case h.listener != nil && h.listener.protocol == routing.TLSPassthrough:
		_ = c.SetDeadline(time.Time{})
		t.copyStream(c, nil, h.route.Stream, h.recorded)
		return
	case err != nil:
		if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && !settings.silent && looksLikeHTTP(record.RecordHeader) {
			_, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\n\r\nThis port speaks HTTPS, and the request came without TLS. Use https:// in the address.\n")
		}
		t.metrics.failures.WithLabelValues(settings.name).Inc()
		t.log.Debugf("Handshake of TLS with %s at %s failed: %v", c.RemoteAddr(), settings.name, err)
	case h.challenge: // The handshake is all that the authority wants to see.
		_ = secure.Close()
	case h.listener.protocol == routing.HTTPS:
		_ = c.SetDeadline(time.Time{})
		t.serveHTTPS(secure, c)
		return
	default:
		_ = c.SetDeadline(time.Time{})
		t.copyStream(c, secure, h.route.Stream, nil)
		return
	}
	_ = c.Close()
}

// looksLikeHTTP tells whether a client that should begin with TLS begins with a request.
func looksLikeHTTP(begin [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO"}, string(begin[:]))
}
