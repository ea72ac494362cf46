package requests

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/backendtls"
	"github.com/kedge-dev/kedge/internal/node/gateway/dialing"
	"github.com/kedge-dev/kedge/internal/node/gateway/http1"
)

const (
	// dialTimeout limits connecting to an endpoint, and TLS with it. Endpoints are in the
	// cluster; one that does not answer in this time is probably gone.
	dialTimeout = 3 * time.Second
	// idleTimeout is how long a connection without requests stays open. Node.js and others
	// close theirs after 5 s. A request that crosses such an end would be lost.
	idleTimeout = 4 * time.Second
	// maxIdle is how many connections without requests an endpoint has at most.
	maxIdle = 128
	// maxAnswerHeader is how many bytes the header of an answer may have.
	maxAnswerHeader = 256 << 10
	// pingAfter is how long an HTTP/2 connection with requests may be silent until a ping asks
	// whether the endpoint still lives.
	pingAfter = 30 * time.Second
)

// pool has the connections to the endpoints of a backend.
type pool struct {
	key    backendtls.Key
	scheme string
	// tls is nil if the backend speaks no TLS.
	tls    *tls.Config
	dialer dialing.Dial

	mu sync.Mutex
	// one and two speak HTTP/1.1 and HTTP/2, and short speaks HTTP/1.1 for requests without a body. They
	// are made when they are needed.
	one, two *http.Transport
	short    *http1.Client
	closed   bool
}

// dialError says that a connection to an endpoint could not be made: the endpoint has seen
// nothing of the request.
type dialError struct{ error }

// Unwrap returns the reason.
func (e dialError) Unwrap() error { return e.error }

func newPool(key backendtls.Key, security *routing.BackendTLS, certificate *routing.Certificate, dial dialing.Dial) *pool {
	p := &pool{key: key, scheme: "http", dialer: dial}
	if security != nil {
		p.scheme, p.tls = "https", backendtls.Config(security, certificate)
	}
	return p
}

// bodiless returns what sends requests without a body by HTTP/1.1.
func (p *pool) bodiless() *http1.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.short == nil {
		p.short = http1.New(http1.Config{Dial: p.connect, MaxIdle: maxIdle, IdleTimeout: idleTimeout, MaxHeader: maxAnswerHeader})
		if p.closed {
			// The backend is gone, but a request has still found it.
			p.short.Close()
		}
	}
	return p.short
}

// transport returns what sends requests by HTTP/1.1 or by HTTP/2.
func (p *pool) transport(http2 bool) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	which := &p.one
	if http2 {
		which = &p.two
	}
	if *which == nil {
		*which = p.newTransport(http2)
	}
	return *which
}

func (p *pool) newTransport(http2 bool) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2 && p.tls != nil)
	protocols.SetUnencryptedHTTP2(http2 && p.tls == nil)
	t := &http.Transport{
		Protocols:   &protocols,
		DialContext: p.dial,
		// What the client accepts is between it and the backend.
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ExpectContinueTimeout:  time.Second,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter / 3},
	}
	if p.tls != nil {
		config := p.settings(http2)
		t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return p.dialTLS(ctx, network, address, config)
		}
	}
	if p.closed {
		// The backend is gone, but a request has still found it.
		t.DisableKeepAlives = true
	}
	return t
}

// close closes the connections without requests, and the others after their requests.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, t := range []*http.Transport{p.one, p.two} {
		if t != nil {
			t.CloseIdleConnections()
		}
	}
	if p.short != nil {
		p.short.Close()
	}
}

// connect connects to an endpoint that speaks HTTP/1.1.
func (p *pool) connect(ctx context.Context, address string) (net.Conn, error) {
	if p.tls == nil {
		return p.dial(ctx, "tcp", address)
	}
	return p.dialTLS(ctx, "tcp", address, p.settings(false))
}

// settings returns those of TLS for HTTP/1.1 or HTTP/2.
func (p *pool) settings(http2 bool) *tls.Config {
	config := p.tls.Clone()
	config.NextProtos = []string{"http/1.1"}
	if http2 {
		config.NextProtos = []string{"h2"}
	}
	return config
}

func (p *pool) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	// The address is that of an endpoint, as text.
	endpoint, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, dialError{err}
	}
	conn, err := p.dialer(ctx, network, endpoint)
	if err != nil {
		return nil, dialError{err}
	}
	return conn, nil
}

func (p *pool) dialTLS(ctx context.Context, network, address string, config *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := p.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, dialError{fmt.Errorf("connect by TLS: %w", err)}
	}
	return secured, nil
}
