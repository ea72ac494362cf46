package requests

import (
	"context"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// upgradeOf returns the protocol that a client wants to switch to, or an empty text. Switching to
// HTTP/2 is refused: the gateway would not see the requests on such a connection.
func upgradeOf(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade") {
		return ""
	}
	protocol := h.Get("Upgrade")
	if !httpguts.ValidHeaderFieldValue(protocol) || strings.Contains(strings.ToLower(protocol), "h2c") {
		return ""
	}
	return protocol
}

// switchProtocols connects client and backend with each other, until both have said all or one
// of them fails.
func (a *attempts) switchProtocols(t *attempt) {
	answer := t.answer
	backend, is := answer.Body.(io.ReadWriteCloser)
	if !is || a.upgrade == "" || !strings.EqualFold(upgradeOf(answer.Header), a.upgrade) {
		a.fail(http.StatusBadGateway)
		return
	}
	h := a.w.Header()
	a.copyHeader(h, answer.Header)
	a.remember(h, t.endpoint)
	a.decorate(h)
	// The client waits for exactly these two.
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, answer.Header["Upgrade"]
	control := http.NewResponseController(a.w.ResponseWriter)
	conn, buffered, err := control.Hijack()
	if err != nil {
		clear(h)
		a.fail(http.StatusBadGateway) // the client has no HTTP/1.1
		return
	}
	a.w.status = http.StatusSwitchingProtocols
	defer conn.Close() //nolint:errcheck // it is over
	// Timeouts are for requests. This is a connection now.
	if a.timer != nil {
		a.timer.Stop()
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	unbind := context.AfterFunc(a.closing, func() {
		_ = backend.Close()
		_ = conn.Close()
	})
	defer unbind()

	head := http.Response{StatusCode: answer.StatusCode, ProtoMajor: 1, ProtoMinor: 1, Header: h}
	if err := head.Write(buffered); err != nil {
		return
	}
	if err := buffered.Flush(); err != nil {
		return
	}
	ended := make(chan error, 2)
	go func() { ended <- pass(backend, buffered, backend) }()
	go func() { ended <- pass(conn, backend, conn) }()
	if err := <-ended; err == nil {
		<-ended
		return
	}
	// The other direction ends because both are closed.
	_ = backend.Close()
	_ = conn.Close()
	<-ended
}

// pass copies until the end, and tells the other side of it. It fails if that cannot be told.
func pass(to io.Writer, from io.Reader, end any) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if half, is := end.(interface{ CloseWrite() error }); is {
		return half.CloseWrite()
	}
	return io.EOF
}
