package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// reasonLimit is how many bytes of an agent's refusal are read.
	reasonLimit = 1 << 10
	// headerLimit is how many bytes the headers of an agent's answer may have.
	headerLimit = 16 << 10
)

// session is the server's end of one tunnel.
type session struct {
	http *http.ClientConn
	// ended is closed when the connection has ended.
	ended chan struct{}
}

// newSession speaks HTTP/2 on conn as the client.
func newSession(ctx context.Context, conn net.Conn) (*session, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // TLS is in the layer below conn
	transport := &http.Transport{
		Protocols:              &protocols,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingPatience},
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	client, err := transport.NewClientConn(ctx, "http", "agent:80")
	if err != nil {
		return nil, fmt.Errorf("speak HTTP/2: %w", err)
	}
	s := &session{http: client, ended: make(chan struct{})}
	end := sync.OnceFunc(func() { close(s.ended) })
	client.SetStateHook(func(client *http.ClientConn) {
		if client.Err() != nil {
			end()
		}
	})
	return s, nil
}

func (s *session) alive() bool { return s.http.Err() == nil }

func (s *session) close() { _ = s.http.Close() }

// dial asks the agent to connect to address.
func (s *session) dial(ctx context.Context, address string) (net.Conn, error) {
	// The pipe gives the caller a whole net.Conn, with deadlines. near is the caller's
	// end. The stream is copied to and from far.
	near, far := net.Pipe()
	stream, cancel := context.WithCancel(context.WithoutCancel(ctx))
	dialed := context.AfterFunc(ctx, cancel)
	response, err := s.connect(stream, address, sending{far})
	if !dialed() && err == nil {
		_ = response.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel()
		_, _ = near.Close(), far.Close()
		return nil, err
	}
	go func() {
		defer cancel()
		_, _ = io.Copy(far, response.Body)
		_, _ = far.Close(), response.Body.Close()
	}()
	return near, nil
}

// answers tells whether the agent answers before ctx ends. Agents refuse every request
// except CONNECT at once (dialer.ServeHTTP).
func (s *session) answers(ctx context.Context) bool {
	request := (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "agent", Path: "/"}, Host: "agent", Header: http.Header{}}).WithContext(ctx)
	response, err := s.http.RoundTrip(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return true
}

// sending is the pipe as the body of a request. The transport closes the body when the
// response has ended, when the caller may not have read the last bytes yet. So Close ends
// only reading.
type sending struct{ net.Conn }

func (s sending) Close() error { return s.SetReadDeadline(time.Unix(1, 0)) }

// connect opens the stream. What is read from body is sent to the target.
func (s *session) connect(ctx context.Context, address string, body io.ReadCloser) (*http.Response, error) {
	request := (&http.Request{
		Method:        http.MethodConnect,
		URL:           &url.URL{Scheme: "http", Host: address},
		Host:          address,
		Header:        http.Header{},
		Body:          body,
		ContentLength: -1,
	}).WithContext(ctx)
	response, err := s.http.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, reasonLimit))
		_ = response.Body.Close()
		return nil, errors.New(strings.TrimSpace(string(reason)))
	}
	return response, nil
}
