package sockets

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// A connection takes about 64 KiB at most: the stacks of its goroutines, the buffers of TLS
// and of HTTP, and what the kernel keeps. All connections may take one eighth of the memory.
const (
	connectionMemory = 64 << 10
	memoryShare      = 8
	// fileShare is which part of the files that the process may open connections may be. A
	// connection takes a second file for its backend, and the rest of kedge needs files, too.
	fileShare        = 4
	leastConnections = 1024
	mostConnections  = 65536
	// crowdedShare is the part of all connections from which on connections of HTTP are closed
	// after each answer, so that idle ones do not take the place of others.
	crowdedShare = 0.75
	// clientShare is which part of all connections one client may have. It is large because
	// many users may stand behind one address.
	clientShare = 4
	// namespaceShare is which part of all connections may be streams and sessions of UDP to the
	// backends of one namespace. Each has a file on both sides, and may last for hours.
	namespaceShare = 2
)

// connectionsFor returns how many connections there may be with so many bytes of memory, in a
// process that may open so many files.
func connectionsFor(memory, files uint64) int {
	return int(min(max(memory/memoryShare/connectionMemory, leastConnections), max(files/fileShare, 1), mostConnections))
}

// full counts that something was refused because there are too many, and warns.
func (s *Sockets) full(socket string) {
	s.metrics.refused.WithLabelValues(socket).Inc()
	s.notice("The gateway refuses connections or requests of %s: it has %d connections and %d requests at this moment. It takes at most %d of each, %d of one client, and %d streams of TLS, TCP and UDP to the backends of one namespace",
		socket, s.connections.count(), s.requests.count(), s.cfg.MaxConnections, s.cfg.MaxPerClient, s.streams.each)
}

// crowded tells whether there soon is no room for more connections.
func (s *Sockets) crowded() bool {
	return float64(s.connections.count()) > crowdedShare*float64(s.connections.all)
}

// notice warns of what clients can make happen at any time, and so at most once a minute.
func (s *Sockets) notice(format string, arguments ...any) {
	now := time.Now().UnixNano()
	if last := s.noticed.Load(); now-last > int64(time.Minute) && s.noticed.CompareAndSwap(last, now) {
		s.log.Warnf(format, arguments...)
	}
}

// patience is how long clients may be silent. Tests are less patient.
type patience struct {
	// header is for the header of a request, the handshake of TLS and the PROXY header.
	header time.Duration
	// idle is for a connection of HTTP between two requests.
	idle time.Duration
	// body is for each read of the body of a request of HTTP/1.
	body time.Duration
	// stream is for each read or write of a request of HTTP/2 and HTTP/3. A connection of
	// these that is alive may hold back single requests.
	stream time.Duration
	// write is for each write to a client of HTTP/1 and HTTP/2. A write has at most about
	// 64 KiB, so a client must read about one kilobyte a second.
	write time.Duration
	// quiet is how long a stream of TCP may carry nothing in both directions. A client or a
	// backend that is gone is noticed earlier, by the keepalive of TCP.
	quiet time.Duration
	// session is for a session of UDP whose client has sent again after its first datagram,
	// and newSession for others. These are Linux's own values for its connection tracking.
	session, newSession time.Duration
	// dial is for each endpoint.
	dial time.Duration
	// grace is how long idle connections of HTTP stay open after their socket has closed, for
	// a request that is on its way. Run does not wait so long.
	grace time.Duration
}

var defaultPatience = patience{
	header: 20 * time.Second, idle: 3 * time.Minute, body: time.Minute, stream: 5 * time.Minute, write: time.Minute,
	quiet: 4 * time.Hour, session: 2 * time.Minute, newSession: 30 * time.Second, dial: 5 * time.Second, grace: time.Second,
}

// limit bounds how many of something there are, in all and of each client. It has no memory
// while there are none.
type limit struct {
	all, each int

	mu      sync.Mutex
	total   int
	clients map[netip.Addr]int
}

func newLimit(all, each int) *limit { return &limit{all: all, each: each} }

// take counts one of a client, or returns false if there are too many. A client that is a
// trusted proxy is only bounded by the total.
func (l *limit) take(client netip.Addr, trusted bool) bool {
	client = owner(client)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.all || !trusted && l.clients[client] >= l.each {
		return false
	}
	if l.clients == nil {
		l.clients = map[netip.Addr]int{}
	}
	l.total++
	l.clients[client]++
	return true
}

// give takes back what take has counted.
func (l *limit) give(client netip.Addr) {
	client = owner(client)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.clients[client]--; l.clients[client] <= 0 {
		delete(l.clients, client)
	}
	if l.total == 0 {
		l.clients = nil // A map does not shrink.
	}
}

// count returns how many there are.
func (l *limit) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// shares bounds how many of something each namespace has.
type shares struct {
	each int

	mu     sync.Mutex
	counts map[string]int
}

// take counts one of a namespace, or returns false if it has too many.
func (s *shares) take(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[namespace] >= s.each {
		return false
	}
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts[namespace]++
	return true
}

// give takes back what take has counted.
func (s *shares) give(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[namespace]--; s.counts[namespace] <= 0 {
		delete(s.counts, namespace)
	}
}

// of returns how many a namespace has.
func (s *shares) of(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[namespace]
}

// namespaceOf returns the namespace of a backend, which has the name NAMESPACE/SERVICE:PORT.
func namespaceOf(backend *routing.Backend) string {
	namespace, _, _ := strings.Cut(backend.Name, "/")
	return namespace
}

// owner returns what counts as one client: an IPv4 address, or a network of IPv6 with 64
// bits, which is the least that anybody has.
func owner(client netip.Addr) netip.Addr {
	client = client.Unmap().WithZone("")
	if client.Is4() || !client.IsValid() {
		return client
	}
	return netip.PrefixFrom(client, 64).Masked().Addr()
}

// addressOf returns the IP address of a client, or the zero Addr.
func addressOf(address net.Addr) netip.Addr {
	switch a := address.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
