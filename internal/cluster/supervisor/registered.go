package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

// allButFormerNodes refuses callers that show a node's certificate whose registration is
// gone or revoked. All other callers pass: the next handler verifies their certificates
// and decides what they may do.
func (s *Supervisor) allButFormerNodes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, uid, ok := showsNode(r.TLS)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		genuine := func() error { return s.cfg.PKI.CheckNodeClient(r.TLS.PeerCertificates) }
		switch err := s.cfg.Registry.Check(r.Context(), node, uid, genuine); {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, registration.ErrRefused):
			unauthorized(w)
		default:
			s.unavailable(w, err)
		}
	})
}

// showsNode returns the node whose certificate a connection has shown, and the UID of its
// registration. It ignores the certificates of servers' own nodes.
func showsNode(state *tls.ConnectionState) (node, uid string, ok bool) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", "", false
	}
	node, uid, ok = pki.RegistrationOf(state.PeerCertificates[0].Subject)
	return node, uid, ok && uid != pki.ServerRegistration
}

// farewell is how long a node's connections stay open after the end of its registration.
// Through its watches the node learns of its deletion in that time, and tells its user.
const farewell = time.Second

// disconnect closes the connections that a node has opened with certificates that are no
// longer accepted: its tunnels, and watches that began before.
func (s *Supervisor) disconnect(node string) {
	if len(s.conns.of(node)) == 0 {
		return
	}
	time.Sleep(farewell)
	for uid, conns := range s.conns.of(node) {
		// Nothing to verify: connections with forged certificates have never got an
		// answer.
		genuine := func() error { return nil }
		if !errors.Is(s.cfg.Registry.Check(context.Background(), node, uid, genuine), registration.ErrRefused) {
			continue
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		s.log.Infof("Closed %d connections of node %s, which was deleted or revoked", len(conns), node)
	}
}

// of returns the open connections of a node, by the UID of the registration that they
// have shown.
func (c *connections) of(node string) map[string][]net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string][]net.Conn{}
	for conn := range c.open {
		if conn.node == node {
			found[conn.registration] = append(found[conn.registration], conn)
		}
	}
	return found
}
