package hosts

import (
	"context"
	"sync/atomic"
)

// Shown is what the client of a connection has asked for and shown in its handshake of TLS. The
// requests of the connection get what belongs to it, and nothing else.
type Shown struct {
	// Name is the server name. It decides which listener the connection has.
	Name Name
	// Authorities are those of the listener, in PEM, that have certified the client. They are
	// empty if the listener lets clients in without a valid certificate.
	Authorities string
}

// Handshake is in the context of all requests of a connection with TLS. Package sockets fills
// it in the handshake.
type Handshake struct{ shown atomic.Pointer[Shown] }

type handshakeKey struct{}

// Decide notes what the client has shown.
func (h *Handshake) Decide(shown Shown) { h.shown.Store(&shown) }

// In returns a context that has the handshake.
func (h *Handshake) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, handshakeKey{}, h)
}

// HandshakeOf returns the handshake in a context, or nil.
func HandshakeOf(ctx context.Context) *Handshake {
	found, _ := ctx.Value(handshakeKey{}).(*Handshake)
	return found
}

// ShownIn returns what the client of a request has shown. It returns false if no listener has
// answered a handshake of this connection.
func ShownIn(ctx context.Context) (Shown, bool) {
	h := HandshakeOf(ctx)
	if h == nil {
		return Shown{}, false
	}
	shown := h.shown.Load()
	if shown == nil {
		return Shown{}, false
	}
	return *shown, true
}
