package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Server is a server's half: it takes the agents' connections and dials through
// them. It is safe for concurrent use.
type Server struct {
	log *logrus.Entry

	mu sync.Mutex
	// sessions are the open tunnels of each node, the newest last. There is
	// more than one where a link has died unnoticed, and where an agent knows
	// this server by several addresses.
	sessions map[string][]*session
}

// sessionLimit is how many tunnels of one node are open at most. An agent opens one
// for each address that it knows a server by.
const sessionLimit = 16

// NewServer makes a Server without any tunnels yet.
func NewServer() *Server {
	return &Server{log: logrus.WithField("component", "tunnel"), sessions: map[string][]*session{}}
}

// Serve takes the connection of a node's agent, and returns when that has
// ended. The request must have come with the certificate of that node.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, node string) {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		http.Error(w, "this is for the tunnels of kedge's agents", http.StatusUpgradeRequired)
		return
	}
	conn, err := upgrade(w)
	if err != nil {
		s.log.Debugf("Tunnel of node %s: %v", node, err)
		return
	}
	defer func() { _ = conn.Close() }()
	session, err := newSession(r.Context(), conn)
	if err != nil {
		s.log.Debugf("Tunnel of node %s: %v", node, err)
		return
	}
	defer session.close()
	s.add(node, session)
	defer s.remove(node, session)
	s.log.Infof("Node %s has opened its tunnel from %s", node, conn.RemoteAddr())
	select {
	case <-session.ended:
	case <-r.Context().Done():
	}
	s.log.Infof("The tunnel of node %s from %s has ended", node, conn.RemoteAddr())
}

// upgrade takes the connection over from the HTTP server.
func upgrade(w http.ResponseWriter) (net.Conn, error) {
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	if buffer.Reader.Buffered() > 0 {
		_ = conn.Close()
		return nil, errors.New("the agent spoke before it was answered")
	}
	_, err = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("answer agent: %w", err)
	}
	return conn, nil
}

// add keeps a session. It closes the oldest one of a node that has too many, so
// that a node cannot take the server's memory.
func (s *Server) add(node string, added *session) {
	s.mu.Lock()
	// A new slice: Dial may be reading the old one.
	all := append(slices.Clone(s.sessions[node]), added)
	var oldest *session
	if len(all) > sessionLimit {
		oldest, all = all[0], all[1:]
	}
	s.sessions[node] = all
	s.mu.Unlock()
	if oldest != nil {
		oldest.close()
	}
}

func (s *Server) remove(node string, removed *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A new slice: Dial may be reading the old one.
	left := slices.DeleteFunc(slices.Clone(s.sessions[node]), func(one *session) bool { return one == removed })
	if len(left) == 0 {
		delete(s.sessions, node)
	} else {
		s.sessions[node] = left
	}
}

// Nodes returns the names of the nodes that have a tunnel to this server, in order.
func (s *Server) Nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

func (s *Server) of(node string) []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[node]
}

// Dial connects to a TCP address, HOST:PORT, from a node: HOST is the node's
// name, for the node itself, or an address of one of its pods or of itself. ctx
// is for the dialing alone, not for the connection. The newest tunnel of the
// node is taken, an older one if that breaks.
func (s *Server) Dial(ctx context.Context, node, address string) (net.Conn, error) {
	err := errors.New("the node has no tunnel to this server: is kedge running there, and can it reach this server?")
	for _, session := range slices.Backward(s.of(node)) {
		var conn net.Conn
		if conn, err = session.dial(ctx, address); err == nil {
			return conn, nil
		}
		if session.alive() || ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("dial %s through node %s: %w", address, node, err)
}
