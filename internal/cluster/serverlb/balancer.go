// Package serverlb is an agent's way to the API: a client-side load balancer without a
// port. Everything on the node that calls a server dials through it. All connections lead
// to one server. When that server fails, they are closed, so that the clients reconnect
// at once and reach another server. The agent package makes the Balancer before the node
// joins, and then runs its component, which learns the addresses of the servers and
// checks the one in use.
package serverlb

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/published"
)

const (
	// dialTimeout bounds the dial of one server. It is long enough for one lost SYN.
	dialTimeout = 3 * time.Second
	keepAlive   = 30 * time.Second
	// leavePatience is longer than a server needs to stop, including the requests that it
	// still answers.
	leavePatience = 15 * time.Second
)

var (
	// errMoved says that another server was chosen during a dial.
	errMoved = errors.New("another server has been chosen meanwhile")
	errNone  = errors.New("no such server is known yet")
)

// Config is what a Balancer has to know.
type Config struct {
	// Server is the server that the user named, HOST:PORT. It is never forgotten: it may
	// be a name that leads to all servers, or the only way in from outside.
	Server string
	// NodeName decides which server a node uses first, so that nodes spread over servers.
	NodeName string
	// File keeps the addresses of the servers over a restart.
	File string
}

// Balancer dials servers. It is safe for concurrent use.
type Balancer struct {
	cfg Config
	log *logrus.Entry
	// searching is held by the goroutine that looks for a server that answers.
	searching chan struct{}
	// servers are all known servers, the preferred first. Only the holder of mu sets them.
	servers published.Value[[]string]

	mu      sync.Mutex
	current string
	conns   map[*conn]bool // all to current
}

// New returns a Balancer of the user's server and of those that it knew before a restart.
func New(cfg Config) *Balancer {
	b := &Balancer{
		cfg:       cfg,
		log:       logrus.WithField("component", "apilb"),
		searching: make(chan struct{}, 1),
		conns:     map[*conn]bool{},
	}
	servers := b.order(recall(cfg.File, cfg.Server))
	b.servers.Set(servers)
	if len(servers) > 0 {
		b.current = servers[0]
	}
	return b
}

// order returns the learned servers and the user's one, without duplicates, by the hash
// of node and server, the highest first (rendezvous hashing).
func (b *Balancer) order(learned []string) []string {
	weight := func(server string) string {
		hash := sha256.Sum256([]byte(server + " " + b.cfg.NodeName))
		return string(hash[:])
	}
	servers := slices.Clone(learned)
	if b.cfg.Server != "" {
		servers = append(servers, b.cfg.Server)
	}
	slices.SortFunc(servers, func(x, y string) int { return cmp.Compare(weight(y), weight(x)) })
	return slices.Compact(servers)
}

// Servers returns the addresses of all servers, and a channel that is closed when they
// change.
func (b *Balancer) Servers() (addresses []string, changed <-chan struct{}) { return b.servers.Get() }

// DialContext connects to a server that answers. It ignores the address.
func (b *Balancer) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	for {
		conn, err := b.dialAny(ctx, network)
		if !errors.Is(err, errMoved) || ctx.Err() != nil {
			return conn, err
		}
	}
}

// dialAny dials the server in use. If that fails, it dials the others in turn.
func (b *Balancer) dialAny(ctx context.Context, network string) (net.Conn, error) {
	server := b.inUse()
	if server == "" {
		return nil, errNone
	}
	conn, err := b.dial(ctx, network, server)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	select {
	case b.searching <- struct{}{}:
		defer func() { <-b.searching }()
	case <-ctx.Done():
		return nil, err
	}
	if found := b.inUse(); found != server {
		return b.dial(ctx, network, found)
	}
	for _, other := range b.others(server) {
		raw, fault := dial(ctx, network, other)
		if fault == nil {
			b.log.Warn(strings.ReplaceAll(err.Error(), "\n", "; "))
			b.move(server, other)
			return b.track(raw, other)
		}
		err = errors.Join(err, fault)
	}
	return nil, err
}

func (b *Balancer) dial(ctx context.Context, network, server string) (net.Conn, error) {
	raw, err := dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	return b.track(raw, server)
}

func dial(ctx context.Context, network, server string) (net.Conn, error) {
	return (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext(ctx, network, server)
}

// track returns the connection in a form that is closed when its server fails.
func (b *Balancer) track(raw net.Conn, server string) (net.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != server {
		_ = raw.Close()
		return nil, fmt.Errorf("dial %s: %w", server, errMoved)
	}
	c := &conn{raw, b}
	b.conns[c] = true
	return c, nil
}

// conn is a connection that its balancer can close.
type conn struct {
	net.Conn
	of *Balancer
}

func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (b *Balancer) inUse() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// others returns all servers except one.
func (b *Balancer) others(server string) []string {
	servers, _ := b.Servers()
	return slices.DeleteFunc(slices.Clone(servers), func(s string) bool { return s == server })
}

// move makes all clients use another server instead of one that has failed, unless that
// is no longer in use. It closes their connections.
func (b *Balancer) move(failed, other string) {
	for _, c := range b.use(other, failed) {
		_ = c.Conn.Close()
	}
}

// leave makes clients use another server from their next connection on. The stopping
// server ends a connection when its requests are answered. Connections that are left
// after leavePatience are closed.
func (b *Balancer) leave(stopping, other string) {
	conns := b.use(other, stopping)
	time.AfterFunc(leavePatience, func() {
		for _, c := range conns {
			_ = c.Conn.Close()
		}
	})
}

// use chooses server if instead is the server in use. It returns the connections to the
// former one.
func (b *Balancer) use(server, instead string) []*conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != instead {
		return nil
	}
	b.log.Infof("Using the server at %s", server)
	b.current = server
	conns := slices.Collect(maps.Keys(b.conns))
	clear(b.conns)
	return conns
}

// Learn replaces the known servers, except the user's one. An empty list changes nothing.
func (b *Balancer) Learn(addresses []string) {
	if len(addresses) == 0 {
		return
	}
	servers := b.order(addresses)
	b.mu.Lock()
	current := b.current
	if before, _ := b.servers.Get(); slices.Equal(servers, before) {
		b.mu.Unlock()
		return
	}
	b.servers.Set(servers)
	b.mu.Unlock()
	b.log.Infof("The servers are at %v", servers)
	if err := remember(b.cfg.File, b.cfg.Server, addresses); err != nil {
		b.log.Warn(err)
	}
	if !slices.Contains(servers, current) {
		b.leave(current, servers[0]) // a server that stops takes itself out first
	}
}
