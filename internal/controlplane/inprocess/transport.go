// Package inprocess lets the components of a process call an HTTP handler of
// the same process, the API server's, with an ordinary HTTP client: no
// listener, no TLS, no bytes through the kernel. Who calls is not proven by a
// credential but carried in the request's context under a key that only this
// package can set. The apiserver package uses it.
package inprocess

import (
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

// Authenticator recognises the requests of this package's transports, and none
// other.
func Authenticator() authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		identity, ok := r.Context().Value(identityKey{}).(user.Info)
		if !ok {
			return nil, false, nil
		}
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{User: identity, Audiences: audiences}, true, nil
	})
}

// NewTransport returns a RoundTripper that hands requests to handler as the
// named user. Being authenticated, the user is in the group
// system:authenticated too.
func NewTransport(handler http.Handler, name string, groups ...string) http.RoundTripper {
	if !slices.Contains(groups, user.AllAuthenticated) {
		groups = append(slices.Clone(groups), user.AllAuthenticated)
	}
	return &transport{handler, &user.DefaultInfo{Name: name, Groups: groups}, nil}
}

// Until returns a RoundTripper like one of NewTransport's whose requests end
// with ctx, whatever their own contexts.
func Until(ctx context.Context, roundTripper http.RoundTripper) http.RoundTripper {
	bounded := *roundTripper.(*transport)
	bounded.life = ctx
	return &bounded
}

type transport struct {
	handler  http.Handler
	identity user.Info
	// life is what every request ends with; nil is for ever.
	life context.Context
}

// RoundTrip returns when the handler has sent its header; the body is streamed
// as the handler writes it.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Header.Get("Upgrade") != "" {
		closeBody(request)
		return nil, errors.New("in-process client: a connection cannot be upgraded; dial the API server's port instead")
	}
	if t.life != nil && t.life.Err() != nil {
		closeBody(request)
		return nil, context.Cause(t.life)
	}
	// The handler's context has nothing of the caller's but its end: values
	// that a caller's own server has put there are none of the API server's.
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

// serve runs the handler and returns a panic as an error, as an HTTP server
// turns it into a broken connection.
func (t *transport) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		p := recover()
		switch {
		case p == nil:
		case p == http.ErrAbortHandler: //nolint:errorlint // net/http compares so too
			err = errAborted
		default:
			// As net/http does: the request is lost, not the process.
			logrus.WithField("component", "apiserver").Errorf("Panic while serving %s %s: %v\n%s", r.Method, r.URL, p, debug.Stack())
			err = fmt.Errorf("in-process client: handler panicked: %v", p)
		}
	}()
	t.handler.ServeHTTP(w, r)
	return nil
}

// errAborted is what a client sees when the handler gives up midway, like a
// broken connection; client-go retries on it.
var errAborted = fmt.Errorf("in-process client: handler aborted the response: %w", io.ErrUnexpectedEOF)

// serverRequest is how a server sees the client's request. It claims HTTP/2,
// as whose streams it behaves: no hijacking, and a stream's end ends no
// connection.
func serverRequest(ctx context.Context, request *http.Request) *http.Request {
	r := request.Clone(ctx)
	if r.Host == "" {
		r.Host = r.URL.Host
	}
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
		// A client's 0 means unknown if there is a body; a server says -1.
		r.ContentLength = -1
	}
	return r
}

func closeBody(request *http.Request) {
	if request.Body != nil {
		_ = request.Body.Close()
	}
}
