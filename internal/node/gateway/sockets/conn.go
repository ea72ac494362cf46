package sockets

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection that a socket has accepted. The socket knows it until it is closed.
type conn struct {
	net.Conn // a *net.TCPConn
	// remote is the client, which a proxy in front may have named.
	remote net.Addr
	// before are bytes that were read already, and that Read returns first.
	before []byte
	// suspect says that the connection must not begin with a header of the PROXY protocol.
	suspect bool
	// stall is how long a write may take. Zero means for ever.
	stall time.Duration
	// gatherer is what writes go through, or nil.
	gatherer *gatherer
	// used says that a first request or a stream has begun.
	used atomic.Bool
	// deadline is what SetWriteDeadline has set, in nanoseconds since 1970, or zero.
	deadline atomic.Int64

	mu      sync.Mutex
	closed  bool
	closers []func()
}

// Read implements net.Conn. It fails with errHeader if the connection is suspect and begins
// with a header of the PROXY protocol.
func (c *conn) Read(into []byte) (int, error) {
	if c.suspect {
		if err := c.inspect(); err != nil {
			return 0, err
		}
	}
	if len(c.before) > 0 {
		n := copy(into, c.before)
		if c.before = c.before[n:]; len(c.before) == 0 {
			c.before = nil
		}
		return n, nil
	}
	return c.Conn.Read(into)
}

// Write implements net.Conn. A client that reads nothing for too long loses the connection.
func (c *conn) Write(bytes []byte) (int, error) {
	if c.gatherer != nil {
		return c.gatherer.Write(bytes)
	}
	return c.write(bytes)
}

// gather makes small writes go out together.
func (c *conn) gather() { c.gatherer = newGatherer(c.write, c.Close) }

func (c *conn) write(bytes []byte) (int, error) {
	if c.stall > 0 {
		deadline := time.Now().Add(c.stall)
		if set := c.deadline.Load(); set != 0 && time.Unix(0, set).Before(deadline) {
			deadline = time.Unix(0, set)
		}
		if err := c.Conn.SetWriteDeadline(deadline); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(bytes)
}

// SetWriteDeadline implements net.Conn. crypto/tls sets one that has passed behind its last write. What was
// written before goes out first.
func (c *conn) SetWriteDeadline(deadline time.Time) error {
	if c.gatherer != nil && !deadline.IsZero() && !deadline.After(time.Now()) {
		c.gatherer.drain()
	}
	var set int64
	if !deadline.IsZero() {
		set = deadline.UnixNano()
	}
	c.deadline.Store(set)
	return c.Conn.SetWriteDeadline(deadline) // also for a write that has begun
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(deadline time.Time) error {
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	return c.SetWriteDeadline(deadline)
}

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// CloseWrite tells the client that nothing more comes. net/http and streams need it.
func (c *conn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	closers := c.closers
	c.closed, c.closers = true, nil
	c.mu.Unlock()
	for _, closer := range closers {
		closer()
	}
	return err
}

// atClose has a function called when the connection is closed: at once if it is already.
func (c *conn) atClose(closer func()) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.closers = append(c.closers, closer)
	}
	c.mu.Unlock()
	if closed {
		closer()
	}
}

// tracker knows the connections of a socket.
type tracker struct {
	mu    sync.Mutex
	conns map[*conn]struct{}
	// empty is closed when there are none, once waiting has been called.
	empty chan struct{}
	// closed says that no more are taken.
	closed bool
}

// add returns false if the socket takes no connections any more.
func (t *tracker) add(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.conns == nil {
		t.conns = map[*conn]struct{}{}
	}
	t.conns[c] = struct{}{}
	return true
}

func (t *tracker) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
	if len(t.conns) > 0 {
		return
	}
	t.conns = nil
	if t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// waiting returns a channel that is closed as soon as there are no connections. It is called
// once, when no more are added.
func (t *tracker) waiting() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	empty := make(chan struct{})
	if len(t.conns) == 0 {
		close(empty)
	} else {
		t.empty = empty
	}
	return empty
}

// end closes all connections, and takes no more.
func (t *tracker) end() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.closeIf(func(*conn) bool { return true })
}

// closeIf closes the connections that a function chooses.
func (t *tracker) closeIf(chosen func(*conn) bool) {
	t.mu.Lock()
	var all []*conn
	for c := range t.conns {
		if chosen(c) {
			all = append(all, c)
		}
	}
	t.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // calls remove
	}
}
