package sockets

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// talk is a connection of HTTP/1. It answers 408 to a client that begins a request and does not
// end its header in time. http.Server closes the connection without a word then.
//
// While http.Server answers a request, it reads one byte of the next one, to notice a client that leaves.
//
//upstream:relies-on std/net/http/server.go connReader.backgroundRead response.finishRequest
type talk struct {
	half  // the *conn, or the *tls.Conn over it
	under *conn
	// patience is how long the server waits for a header.
	patience time.Duration
	// waiting says that the server waits for a request, begun that a part of it has come, ahead that
	// its first byte came before the answer to the request before it had ended, and over that the
	// client was told that nothing more comes.
	waiting, begun, ahead, over atomic.Bool
}

// secureTalk is a talk with TLS. http.Server tells requests about the TLS of a connection that
// has the method ConnectionState.
//
//upstream:relies-on std/net/http/server.go conn.serve connectionStater
type secureTalk struct {
	talk
	secure *tls.Conn
}

// ConnectionState is for http.Server.
func (t *secureTalk) ConnectionState() tls.ConnectionState { return t.secure.ConnectionState() }

// Read implements net.Conn.
func (t *talk) Read(into []byte) (int, error) {
	n, err := t.half.Read(into)
	if n > 0 {
		t.begun.Store(true)
		t.ahead.Store(len(into) == 1)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && t.begun.Load() && t.waiting.CompareAndSwap(true, false) {
		text := fmt.Sprintf("The gateway has waited %s for the header of this request. Connect again, and send the header at once.\n", t.patience)
		_, _ = fmt.Fprintf(t.half, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
			http.StatusRequestTimeout, http.StatusText(http.StatusRequestTimeout), len(text), text)
		t.over.Store(true)
	}
	return n, err
}

// Write implements net.Conn. It fails after the answer 408: the server would add one of its own if
// it takes the part of the request for a whole one.
func (t *talk) Write(bytes []byte) (int, error) {
	if t.over.Load() {
		return 0, net.ErrClosed
	}
	return t.half.Write(bytes)
}

// turn notes what the server does with the connection.
func (t *talk) turn(state http.ConnState) {
	switch state {
	case http.StateNew, http.StateIdle:
		t.begun.Store(t.ahead.Swap(false))
		t.waiting.Store(true)
	default:
		t.waiting.Store(false)
	}
}

// talkOf returns the talk of a connection of the server, or nil with HTTP/2 over TLS.
func talkOf(c net.Conn) *talk {
	switch c := c.(type) {
	case *talk:
		return c
	case *secureTalk:
		return &c.talk
	}
	return nil
}

// helloIn returns the handshake of a connection of the server, or nil without TLS.
func helloIn(c net.Conn) *hello {
	switch c := c.(type) {
	case *tls.Conn:
		return c.NetConn().(*hello)
	case *secureTalk:
		return c.secure.NetConn().(*hello)
	}
	return nil
}

// under returns the connection below one of the server.
func under(c net.Conn) *conn {
	if t := talkOf(c); t != nil {
		return t.under
	}
	return helloIn(c).conn
}
