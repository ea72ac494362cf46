package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// requestTime is how long a request to an authority may take.
	requestTime = 30 * time.Second
	// maxRequests is how many requests an attempt may need: some for each host, and polling.
	maxRequests = 600
	// maxAnswer is how many bytes an answer may have. A chain of certificates has about 5 kB.
	maxAnswer = 256 << 10
)

// errAddress means that an authority is at an address that kedge does not connect to.
var errAddress = errors.New("kedge does not connect there for an annotation")

// way is the way to an authority, for one attempt.
type way struct {
	transport *http.Transport
	left      atomic.Int64
}

// newWay returns the way to an authority. The cluster's own authority may be anywhere, and is
// reached through the proxy of the server's environment. All others are named by whoever may
// write an Ingress: kedge connects to them directly, and not to addresses that only this
// server reaches. No address is judged by its name, but when it is dialled, so that DNS cannot
// give two answers.
func (m *Manager) newWay(directory string) *way {
	dialer := &net.Dialer{Timeout: requestTime}
	transport := &http.Transport{
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    requestTime,
		ResponseHeaderTimeout:  requestTime,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
		DialContext:            dialer.DialContext,
	}
	if m.isTrusted(directory) {
		transport.Proxy = http.ProxyFromEnvironment
		transport.TLSClientConfig.RootCAs = m.cfg.Roots
	} else {
		dialer.ControlContext = m.control
	}
	w := &way{transport: transport}
	w.left.Store(maxRequests)
	return w
}

// client returns a client that uses the way.
func (w *way) client() *http.Client {
	return &http.Client{Transport: w, Timeout: requestTime, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // RFC 8555 has no redirects
	}}
}

// close closes the connections.
func (w *way) close() { w.transport.CloseIdleConnections() }

// RoundTrip implements http.RoundTripper. It bounds what an authority can make kedge do.
func (w *way) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" {
		return nil, fmt.Errorf("the authority wants a request to %s, which is not https", clip(request.URL.String()))
	}
	if w.left.Add(-1) < 0 {
		return nil, fmt.Errorf("the authority needed more than %d requests", maxRequests)
	}
	response, err := w.transport.RoundTrip(request)
	if err == nil {
		response.Body = limited{io.LimitReader(response.Body, maxAnswer), response.Body}
	}
	return response, err
}

// limited is a body of bounded length.
type limited struct {
	io.Reader
	io.Closer
}

// control refuses to connect to an address.
func (m *Manager) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("read address %q: %w", address, err)
	}
	if !m.isAllowed(to.Addr()) {
		return fmt.Errorf("connect to %s: %w", to, errAddress)
	}
	return nil
}

// isAllowed tells whether an authority that an annotation names may have an address.
func (m *Manager) isAllowed(address netip.Addr) bool {
	address = address.WithZone("").Unmap()
	if address.IsLoopback() || address.IsUnspecified() || address.IsLinkLocalUnicast() || address.IsMulticast() {
		return false
	}
	return !slices.ContainsFunc(m.cfg.Refused, func(refused netip.Prefix) bool { return refused.Contains(address) })
}
