package tunnel

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// open connects to a server, shows the node's certificate and asks for the upgrade to a
// tunnel.
func open(ctx context.Context, server string, config *tls.Config) (*upgraded, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	raw, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	conn := &upgraded{Conn: raw, reader: bufio.NewReader(raw), closed: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = ask(conn, server)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// errFormer is a server's answer to a node whose registration has ended.
var errFormer = errors.New("the server no longer accepts this node's certificates: the node was deleted or revoked. " +
	"To join again, restart kedge with a join token. To remove the node, stop kedge and run `kedge killall`")

// ask sends the request for the upgrade and reads the answer.
func ask(conn *upgraded, server string) error {
	request := &http.Request{
		Method: http.MethodGet,
		URL:    &url.URL{Scheme: "https", Host: server, Path: join.ConnectPath},
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}},
	}
	if err := request.Write(conn); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	response, err := http.ReadResponse(conn.reader, request)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusUnauthorized {
		return errFormer
	}
	reason, _ := io.ReadAll(io.LimitReader(response.Body, reasonLimit))
	return fmt.Errorf("the server answered %s: %s", response.Status, strings.TrimSpace(string(reason)))
}

// upgraded is a connection whose first bytes may be in a buffer already, and whose end
// can be waited for. It also hides the TLS connection from net/http, which would refuse
// some ciphers.
type upgraded struct {
	net.Conn
	reader *bufio.Reader
	once   sync.Once
	closed chan struct{}
}

func (c *upgraded) Read(p []byte) (int, error) { return c.reader.Read(p) }

func (c *upgraded) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// listener accepts one connection, and ends with it.
type listener struct {
	conn  *upgraded
	given bool
}

func (l *listener) Accept() (net.Conn, error) {
	if !l.given {
		l.given = true
		return l.conn, nil
	}
	<-l.conn.closed
	return nil, net.ErrClosed
}

func (l *listener) Close() error   { return l.conn.Close() }
func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }
