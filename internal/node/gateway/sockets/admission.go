package sockets

import (
	"context"
	"net/http"
	"sync/atomic"
)

// admission is what a connection has shown in its handshake. It is in the context of requests.
type admission struct {
	// listener is the one whose authorities know the client. It is nil before the handshake.
	listener atomic.Pointer[tlsListener]
}

type admissionKey struct{}

func (a *admission) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, admissionKey{}, a)
}

func admissionOf(ctx context.Context) *admission {
	found, _ := ctx.Value(admissionKey{}).(*admission)
	return found
}

// admits tells whether a request may be served whose connection was made with earlier settings:
// its listener may want to know its clients by now, or know others. The client of a connection
// that is not admitted makes a new one.
func (s *settings) admits(r *http.Request) bool {
	if !s.strict || r.TLS == nil {
		return true
	}
	listener, ok := s.listeners.find(r.TLS.ServerName)
	if !ok || listener.authorities == "" {
		return true
	}
	shown := admissionOf(r.Context())
	if shown == nil {
		return false
	}
	then := shown.listener.Load()
	return then != nil && then.authorities == listener.authorities
}
