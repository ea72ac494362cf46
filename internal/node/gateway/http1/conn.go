package http1

import (
	"bufio"
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// conn is a connection to an endpoint. It has at most one request at a time.
type conn struct {
	net.Conn
	client  *Client
	address string
	// socket is that of the connection, or nil if it cannot be looked at.
	socket syscall.RawConn
	in     *bufio.Reader
	out    *bufio.Writer
	// served says that the connection has had a request before.
	served bool
	// since is when the last request ended.
	since time.Time
	// room is how many bytes may be read until the header of the answer ends.
	room int64
	// wrote and read are how many bytes of the request and of its answer have passed.
	wrote, read int64
	// unbind ends the hold of the context over the connection. It returns false if the context has ended.
	unbind func() bool
}

// Read is for the buffer. It fails if a header is too long.
func (c *conn) Read(into []byte) (int, error) {
	if c.room <= 0 {
		return 0, errHeader
	}
	if int64(len(into)) > c.room {
		into = into[:c.room]
	}
	n, err := c.Conn.Read(into)
	c.room -= int64(n)
	c.read += int64(n)
	return n, err
}

// Write is for the buffer.
func (c *conn) Write(bytes []byte) (int, error) {
	n, err := c.Conn.Write(bytes)
	c.wrote += int64(n)
	return n, err
}

// exchange sends a request and reads the answer up to its body. If it fails, the caller closes the
// connection.
func (c *conn) exchange(ctx context.Context, r *http.Request, hint func(int, textproto.MIMEHeader) error) (*http.Response, error) {
	c.room, c.wrote, c.read = c.client.cfg.MaxHeader, 0, 0
	c.unbind = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	answer, err := c.ask(r, hint)
	if err != nil {
		c.unbind()
		return nil, err
	}
	reusable := !answer.Close && answer.StatusCode >= http.StatusOK
	if answer.Body == http.NoBody {
		c.release(reusable)
		return answer, nil
	}
	c.room = math.MaxInt64
	answer.Body = &body{ReadCloser: answer.Body, conn: c, reusable: reusable}
	return answer, nil
}

// ask writes a request and reads the header of its answer.
func (c *conn) ask(r *http.Request, hint func(int, textproto.MIMEHeader) error) (*http.Response, error) {
	if err := r.Write(c.out); err != nil {
		return nil, err
	}
	if err := c.out.Flush(); err != nil {
		return nil, err
	}
	for {
		answer, err := http.ReadResponse(c.in, r)
		if err != nil {
			return nil, err
		}
		// After 101, the connection speaks another protocol.
		if code := answer.StatusCode; code < 100 || code >= http.StatusOK || code == http.StatusSwitchingProtocols {
			return answer, nil
		} else if code != http.StatusContinue {
			if err := hint(code, textproto.MIMEHeader(answer.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// release ends a request. The connection is kept if the caller says that it may be, and if nothing came
// after the answer: what comes then would be taken for the answer to another request.
func (c *conn) release(reusable bool) {
	alive := c.unbind()
	if alive && reusable && c.in.Buffered() == 0 && c.socket != nil {
		c.client.keep(c)
		return
	}
	_ = c.Close()
}

// mayRepeat tells whether a request that has failed on the connection may be sent over another one,
// because the endpoint has closed this one before it got the request, or because doing it twice does no
// harm. Source: http.Transport.
func (c *conn) mayRepeat(method string) bool {
	if c.wrote == 0 {
		return true
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return c.read == 0
	}
	return false
}

// quiet tells whether the endpoint has sent nothing since its last answer, and has not closed the
// connection. Bytes that came without a request would be taken for the answer to the next one.
func (c *conn) quiet() bool {
	var one [1]byte
	var failure error
	err := c.socket.Read(func(fd uintptr) bool {
		_, failure = unix.Read(int(fd), one[:]) // Go's sockets never block
		return true
	})
	return err == nil && failure == unix.EAGAIN
}

// socketOf returns the socket of a connection, or nil.
func socketOf(c net.Conn) syscall.RawConn {
	if secured, is := c.(*tls.Conn); is {
		c = secured.NetConn()
	}
	under, is := c.(syscall.Conn)
	if !is {
		return nil
	}
	socket, err := under.SyscallConn()
	if err != nil {
		return nil
	}
	return socket
}
