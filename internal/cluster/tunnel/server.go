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

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

// Server is a server's side: it takes the agents' connections and dials through them. It
// is safe for concurrent use.
type Server struct {
	log *logrus.Entry
	// relay is nil if the pods' network is not the mesh.
	relay *mesh.Relay

	mu sync.Mutex
	// sessions are the open tunnels of each node, the newest last. A node has more than
	// one if a link has died unnoticed, or if its agent knows this server by several
	// addresses.
	sessions map[string][]*session
	// met are the nodes that have ever had a tunnel.
	met map[string]bool
}

// sessionLimit is how many tunnels of one node may be open. An agent opens one for each
// address of a server that it knows.
const sessionLimit = 16

// NewServer makes a Server without any tunnels yet. relay takes a stream of each node. It may be nil.
func NewServer(relay *mesh.Relay) *Server {
	return &Server{log: logrus.WithField("component", "tunnel"), relay: relay, sessions: map[string][]*session{}, met: map[string]bool{}}
}

// Serve takes the connection of a node's agent, and returns when the connection has
// ended. The caller must have verified that the request came with the node's certificate.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, node string) {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), protocol) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		http.Error(w, "this path is for the tunnels of kedge's agents", http.StatusUpgradeRequired)
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
	if s.relay != nil {
		var attached sync.WaitGroup
		defer attached.Wait()
		attached.Go(func() { s.attach(r.Context(), node, session) })
	}
	select {
	case <-session.ended:
	case <-r.Context().Done():
	}
	s.log.Infof("The tunnel of node %s from %s has ended", node, conn.RemoteAddr())
}

// attach opens the stream of the mesh, and serves it until the tunnel ends. A node whose network is another one refuses the stream.
func (s *Server) attach(ctx context.Context, node string, session *session) {
	stream, err := session.dial(ctx, meshTarget)
	if err == nil {
		err = s.relay.Attach(ctx, node, stream)
	}
	s.log.Debugf("The stream of the mesh of node %s has ended: %v", node, err)
}

// upgrade takes the connection over from the HTTP server.
func upgrade(w http.ResponseWriter) (net.Conn, error) {
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over connection: %w", err)
	}
	if buffer.Reader.Buffered() > 0 {
		_ = conn.Close()
		return nil, errors.New("the agent sent data before the server answered")
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

// add keeps a session. If the node has too many, add closes the oldest one, so that a
// node cannot use up the server's memory.
func (s *Server) add(node string, added *session) {
	s.mu.Lock()
	// A new slice: Dial may be reading the old one.
	all := append(slices.Clone(s.sessions[node]), added)
	var oldest *session
	if len(all) > sessionLimit {
		oldest, all = all[0], all[1:]
	}
	s.sessions[node] = all
	s.met[node] = true
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

// Answers asks a node for a sign of life through its tunnels, until ctx ends. known is
// false if the node has never had a tunnel to this server.
func (s *Server) Answers(ctx context.Context, node string) (answers, known bool) {
	s.mu.Lock()
	sessions, known := s.sessions[node], s.met[node]
	s.mu.Unlock()
	found := make(chan bool, len(sessions))
	for _, session := range sessions {
		go func() { found <- session.answers(ctx) }()
	}
	for range sessions {
		if <-found {
			return true, known
		}
	}
	return false, known
}

// Dial connects to a TCP address, HOST:PORT, from a node. HOST is the node's name, which
// stands for the node itself, or an address of the node or of one of its pods. ctx bounds
// only the dialing, not the connection. Dial uses the newest tunnel of the node, and an
// older one if that breaks.
func (s *Server) Dial(ctx context.Context, node, address string) (net.Conn, error) {
	err := errors.New("the node has no tunnel to this server: check that kedge runs there and can reach this server")
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
