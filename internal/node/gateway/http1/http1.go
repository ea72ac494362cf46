// Package http1 sends requests without a body by HTTP/1.1 to the endpoints of a gateway, over connections
// that it keeps. Package requests calls it. All other requests go through http.Transport.
//
// http.Transport has two goroutines for each connection and gives each request from one to the other,
// because a request with a body is written while its answer is read. A request without a body needs
// neither: the goroutine of the request writes it and reads the answer.
//
// net/http writes the requests and reads the answers. This package only decides which connection a request
// gets, and whether the connection may be used again.
package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

var (
	errHeader     = errors.New("the header of the answer is too long")
	errHasBody    = errors.New("the request has a body")
	errBadRequest = errors.New("the request has a method or a header that cannot be sent")
)

// Config is what New needs.
type Config struct {
	// Dial connects to an address, which is the host of a request's URL.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// MaxIdle is how many connections without a request each address has at most, and IdleTimeout how
	// long they stay open.
	MaxIdle     int
	IdleTimeout time.Duration
	// MaxHeader is how many bytes the header of an answer may have, with those of informational answers.
	MaxHeader int64
}

// Client sends requests. All of its methods may be called at any time by any goroutine.
type Client struct {
	cfg Config

	mu     sync.Mutex
	closed bool
	// idle are the connections without a request, by address. The last one was used last.
	idle map[string][]*conn
	// expiry closes those that were not used for too long. It is nil if there are none.
	expiry *time.Timer
}

// New returns a Client without connections.
func New(cfg Config) *Client { return &Client{cfg: cfg, idle: map[string][]*conn{}} }

// Do sends a request that has no body to the host of its URL, and returns the answer. The caller closes the
// body of the answer. Do and reading the body fail when ctx ends, and Do fails with the errors of Dial and
// of hint. hint gets the informational answers that come before the answer, except 100.
//
// A connection that has been used before may turn out to be closed. Then Do sends the request again over
// another connection, if doing it twice is harmless.
func (c *Client) Do(ctx context.Context, r *http.Request, hint func(code int, header textproto.MIMEHeader) error) (*http.Response, error) {
	if r.Body != nil {
		return nil, errHasBody
	}
	if !httpguts.ValidHeaderFieldName(r.Method) || !sendable(r.Header) {
		return nil, errBadRequest
	}
	for {
		used, err := c.get(ctx, r.URL.Host)
		if err != nil {
			return nil, err
		}
		again := used.served
		answer, err := used.exchange(ctx, r, hint)
		if err == nil {
			return answer, nil
		}
		_ = used.Close()
		if !again || ctx.Err() != nil || !used.mayRepeat(r.Method) {
			return nil, fmt.Errorf("ask %s: %w", r.URL.Host, err)
		}
	}
}

// sendable tells whether a header can be sent without becoming another one. Source: http.Transport.
func sendable(h http.Header) bool {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return false
			}
		}
	}
	return true
}

// get returns a connection to an address: the one that was used last, or a new one.
func (c *Client) get(ctx context.Context, address string) (*conn, error) {
	for {
		kept := c.take(address)
		if kept == nil {
			break
		}
		if time.Since(kept.since) < c.cfg.IdleTimeout && kept.quiet() {
			return kept, nil
		}
		_ = kept.Close()
	}
	raw, err := c.cfg.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	made := &conn{Conn: raw, client: c, address: address, socket: socketOf(raw)}
	made.in, made.out = bufio.NewReader(made), bufio.NewWriter(made)
	return made, nil
}

// take removes a connection from those without a request, and returns it, or nil if there is none.
func (c *Client) take(address string) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[address]
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	list[len(list)-1] = nil
	c.idle[address] = list[:len(list)-1]
	return last
}

// keep adds a connection to those without a request, or closes it.
func (c *Client) keep(used *conn) {
	used.since, used.served = time.Now(), true
	c.mu.Lock()
	full := c.closed || len(c.idle[used.address]) >= c.cfg.MaxIdle
	if !full {
		c.idle[used.address] = append(c.idle[used.address], used)
		if c.expiry == nil {
			c.expiry = time.AfterFunc(c.cfg.IdleTimeout, c.expire)
		}
	}
	c.mu.Unlock()
	if full {
		_ = used.Close()
	}
}

// expire closes the connections that were not used for too long, and comes back for the others.
func (c *Client) expire() { closeAll(c.takeExpired(time.Now())) }

// takeExpired removes the connections that were not used for too long, and returns them.
func (c *Client) takeExpired(now time.Time) (expired []*conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.cfg.IdleTimeout
	for address, list := range c.idle {
		old := 0
		for old < len(list) && now.Sub(list[old].since) >= c.cfg.IdleTimeout {
			old++
		}
		expired = append(expired, list[:old]...)
		if old == len(list) {
			delete(c.idle, address)
			continue
		}
		c.idle[address] = append([]*conn(nil), list[old:]...)
		next = min(next, c.cfg.IdleTimeout-now.Sub(list[old].since))
	}
	c.expiry = nil
	if len(c.idle) > 0 {
		c.expiry = time.AfterFunc(next, c.expire)
	}
	return expired
}

// Close closes the connections without a request, and each other one when its request has ended.
func (c *Client) Close() {
	var all []*conn
	c.mu.Lock()
	c.closed = true
	if c.expiry != nil {
		c.expiry.Stop()
		c.expiry = nil
	}
	for _, list := range c.idle {
		all = append(all, list...)
	}
	clear(c.idle)
	c.mu.Unlock()
	closeAll(all)
}

// closeAll closes connections. That may take a while with TLS, so nobody holds a lock.
func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// body is the body of an answer. Its end decides what becomes of the connection.
type body struct {
	io.ReadCloser
	conn *conn
	// reusable says that the connection may be used again after the end of the body, and over that the
	// connection was given back or closed.
	reusable, over bool
}

// Read implements io.Reader.
func (b *body) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer. If the body was not read to its end, the connection cannot be used again.
// The rest is not read: it may have no end.
func (b *body) Close() error {
	b.end(false)
	return nil
}

func (b *body) end(whole bool) {
	if !b.over {
		b.over = true
		b.conn.release(whole && b.reusable)
	}
}
