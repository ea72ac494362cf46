// Package inprocess lets the components of a process call an HTTP handler of the
// same process, that of the API server, with an ordinary HTTP client: without a
// listener, TLS, or bytes through the kernel. No credential proves who calls. The
// caller's name is in the request's context instead, under a key that only this
// package can set. The apiserver package uses it.
package inprocess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// identityKey is the context key of a request's user.Info.
type identityKey struct{}

// Authenticator recognizes only the requests of this package's transports.
func Authenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		identity, ok := Caller(r.Context())
		if !ok {
			return nil, false, nil
		}
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{User: identity, Audiences: audiences}, true, nil
	})
}

// Caller returns the user whose transport made the request with a context. It returns false
// for all other requests.
func Caller(ctx context.Context) (user.Info, bool) {
	identity, ok := ctx.Value(identityKey{}).(user.Info)
	return identity, ok
}

// NewTransport returns a RoundTripper that hands requests to handler as the named
// user. The user is also in the group system:authenticated.
func NewTransport(handler http.Handler, name string, groups ...string) http.RoundTripper {
	if !slices.Contains(groups, user.AllAuthenticated) {
		groups = append(slices.Clone(groups), user.AllAuthenticated)
	}
	return &transport{handler, &user.DefaultInfo{Name: name, Groups: groups}, nil}
}

// Until returns a RoundTripper like roundTripper, which NewTransport must have
// made. Its requests end with ctx, whatever their own contexts.
func Until(ctx context.Context, roundTripper http.RoundTripper) http.RoundTripper {
	bounded := *roundTripper.(*transport)
	bounded.life = ctx
	return &bounded
}

type transport struct {
	handler  http.Handler
	identity user.Info
	// life ends every request. If it is nil, requests have no such end.
	life context.Context
}

// RoundTrip returns when the handler has sent its header. The body is streamed as
// the handler writes it.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Header.Get("Upgrade") != "" {
		closeBody(request)
		return nil, errors.New("in-process client: a connection cannot be upgraded; dial the API server's port instead")
	}
	if t.life != nil && t.life.Err() != nil {
		closeBody(request)
		return nil, context.Cause(t.life)
	}
	// The handler's context inherits only the end of the caller's context. Values
	// that a caller's own server put there do not belong to the API server.
	ctx, cancel := context.WithCancelCause(context.WithValue(context.Background(), identityKey{}, t.identity))
	unlink := context.AfterFunc(request.Context(), func() { cancel(context.Cause(request.Context())) })
	unbind := func() bool { return true }
	if t.life != nil {
		unbind = context.AfterFunc(t.life, func() { cancel(context.Cause(t.life)) })
	}

	w := newResponseWriter(ctx, request)
	go func() {
		err := t.serve(w, serverRequest(ctx, request))
		unlink()
		unbind()
		w.finish(err)
		closeBody(request)
		cancel(context.Canceled)
	}()

	select {
	case <-w.started:
	case <-w.finished:
	case <-ctx.Done():
		// The caller has given up, unless the handler has just finished.
		select {
		case <-w.started:
		case <-w.finished:
		default:
			return nil, context.Cause(ctx)
		}
	}
	return w.result(cancel)
}

// serve runs the handler and returns a panic as an error, just as an HTTP server
// breaks the connection after a panic.
func (t *transport) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		p := recover()
		switch {
		case p == nil:
		case p == http.ErrAbortHandler: //nolint:errorlint // net/http compares in the same way
			err = errAborted
		default:
			// Like in net/http, the request is lost and the process continues.
			logrus.WithField("component", "apiserver").Errorf("Panic while serving %s %s: %v\n%s", r.Method, r.URL, p, debug.Stack())
			err = fmt.Errorf("in-process client: handler panicked: %v", p)
		}
	}()
	t.handler.ServeHTTP(w, r)
	return nil
}

// errAborted is the client's error when the handler gives up midway. It looks
// like a broken connection, so client-go retries.
var errAborted = fmt.Errorf("in-process client: handler aborted the response: %w", io.ErrUnexpectedEOF)

// serverRequest returns the client's request in a server's form. It claims to be
// HTTP/2, because it behaves like an HTTP/2 stream: it cannot be hijacked, and
// its end closes no connection.
func serverRequest(ctx context.Context, request *http.Request) *http.Request {
	r := request.Clone(ctx)
	r.Host = cmp.Or(r.Host, r.URL.Host)
	r.URL.Scheme, r.URL.Host, r.URL.User = "", "", nil
	r.RequestURI = r.URL.RequestURI()
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	r.RemoteAddr = "127.0.0.1:0"
	r.Close = false
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.ContentLength == 0 && r.Body != http.NoBody {
		// A client's 0 means unknown if there is a body. A server uses -1.
		r.ContentLength = -1
	}
	return r
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}
