package supervisor

import (
	"bufio"
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

const (
	// maxStrangers is how many connections of strangers may be open at once. Each takes
	// about 40 KiB after its TLS handshake. A thousand agents that join from behind one
	// address need about as many for a moment.
	maxStrangers = 512
	// strangerPatience is how long a connection may take from its beginning to its first
	// request. The TLS handshake is part of that time, and takes seconds on a small board
	// that is busy.
	strangerPatience = 20 * time.Second
	// strangerIdle is how long a stranger's connection may take from the answer to one
	// request until the next request. http.Server has no limit for a body that is
	// announced and never comes, once the request is answered.
	strangerIdle = 90 * time.Second
)

// strangers are the open connections that have not shown credentials which the server
// accepted. There are at most limit of them. When one more comes, the oldest connection
// of the address that has the most is closed. So a host that opens thousands of
// connections closes its own, and does not hold up others. New connections get in even
// from the address of such a host, as behind NAT.
type strangers struct {
	limit          int
	patience, idle time.Duration

	mu    sync.Mutex
	count int
	// serial is how many strangers there have been.
	serial uint64
	// hosts has the strangers of each host, the oldest first.
	hosts map[netip.Prefix]*list.List
}

// stranger is a connection that begins as one of strangers.
type stranger struct {
	net.Conn
	all    *strangers
	host   netip.Prefix
	serial uint64
	// silence closes the connection when it fires.
	silence *time.Timer
	// all.mu guards place, which is nil once isKnown is true.
	place   *list.Element
	isKnown atomic.Bool
}

func newStrangers() *strangers {
	return &strangers{limit: maxStrangers, patience: strangerPatience, idle: strangerIdle, hosts: map[netip.Prefix]*list.List{}}
}

// listener returns the listener whose connections begin as strangers.
func (s *strangers) listener(l net.Listener) net.Listener { return &strangerListener{l, s} }

type strangerListener struct {
	net.Listener
	all *strangers
}

func (l *strangerListener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn, surplus := l.all.add(raw)
	if surplus != nil {
		_ = surplus.Close()
	}
	return conn, nil
}

// add takes in a connection. If there are too many then, it returns the one to close.
func (s *strangers) add(raw net.Conn) (conn, surplus *stranger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	conn = &stranger{Conn: raw, all: s, host: hostOf(raw.RemoteAddr()), serial: s.serial}
	conn.silence = time.AfterFunc(s.patience, func() { _ = conn.Close() })
	if s.hosts[conn.host] == nil {
		s.hosts[conn.host] = list.New()
	}
	conn.place = s.hosts[conn.host].PushBack(conn)
	s.count++
	if s.count <= s.limit {
		return conn, nil
	}
	most := 0
	for _, connections := range s.hosts {
		oldest := connections.Front().Value.(*stranger)
		if n := connections.Len(); n > most || n == most && oldest.serial < surplus.serial {
			most, surplus = n, oldest
		}
	}
	return conn, surplus
}

// hostOf returns the addresses that one host has: in IPv6, a /64.
func hostOf(address net.Addr) netip.Prefix {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Prefix{} // not TCP: all of these count as one host
	}
	ip, bits := parsed.Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	prefix, err := ip.WithZone("").Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// known takes a connection out of the strangers, so that no limit applies to it. It may
// be called more than once.
func (c *stranger) known() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	c.silence.Stop()
	if c.place == nil {
		return
	}
	connections := c.all.hosts[c.host]
	connections.Remove(c.place)
	if connections.Len() == 0 {
		delete(c.all.hosts, c.host)
	}
	c.place = nil
	c.all.count--
	c.isKnown.Store(true)
}

// wait closes the connection after the idle time, unless it becomes known or another
// request comes.
func (c *stranger) wait() {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.place != nil {
		c.silence.Reset(c.all.idle)
	}
}

// Close implements net.Conn.
func (c *stranger) Close() error {
	c.known()
	return c.Conn.Close()
}

type strangerKey struct{}

// remember implements http.Server.ConnContext. It lets a request find its connection.
func (s *strangers) remember(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if tracked, ok := conn.(*connection); ok {
		conn = tracked.Conn
	}
	return context.WithValue(ctx, strangerKey{}, conn)
}

// judge passes requests on to next. When next has accepted the credentials in one, their
// connection is known.
func (s *strangers) judge(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(strangerKey{}).(*stranger)
		if !ok || conn.isKnown.Load() {
			next.ServeHTTP(w, r)
			return
		}
		conn.silence.Stop()
		defer conn.wait()
		if !showsCredentials(r) {
			next.ServeHTTP(w, r)
			return
		}
		judged := &judgedWriter{ResponseWriter: w, conn: conn}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(judged), r)
		judged.answered(http.StatusOK) // the status of an answer that sets none
	})
}

// showsCredentials tells whether a request has credentials that its handler checks, so
// that it answers 401 to wrong ones. /cacerts checks none, and the API server checks no
// passwords.
func showsCredentials(r *http.Request) bool {
	if r.URL.Path == join.CACertsPath || r.Method == http.MethodOptions {
		return false
	}
	if len(r.TLS.PeerCertificates) > 0 {
		return true
	}
	scheme, credentials, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	switch {
	case strings.TrimSpace(credentials) == "":
		return false
	case strings.HasPrefix(r.URL.Path, "/v1-kedge/"):
		return true
	default:
		return strings.EqualFold(scheme, "Bearer")
	}
}

// judgedWriter notes the status of an answer to a request with credentials.
type judgedWriter struct {
	http.ResponseWriter
	conn   *stranger
	status int
}

// Unwrap serves http.ResponseController and WrapForHTTP1Or2.
func (w *judgedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *judgedWriter) WriteHeader(status int) {
	w.answered(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *judgedWriter) Write(data []byte) (int, error) {
	w.answered(http.StatusOK)
	return w.ResponseWriter.Write(data)
}

// Flush implements http.Flusher. Every writer of http.Server implements it.
func (w *judgedWriter) Flush() {
	w.answered(http.StatusOK)
	w.ResponseWriter.(http.Flusher).Flush()
}

// Hijack implements http.Hijacker, for writers that implement it. No handler upgrades a
// connection for an unknown caller.
func (w *judgedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.answered(http.StatusSwitchingProtocols)
	return w.ResponseWriter.(http.Hijacker).Hijack()
}

// answered judges the first status of the answer. Of the refusals, only 403 says that the
// caller is known, because it is about the caller's rights. Others may come before the
// handler has looked at the credentials.
func (w *judgedWriter) answered(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	if status == http.StatusSwitchingProtocols || status >= 200 && status < 300 || status == http.StatusForbidden {
		w.conn.known()
	}
}
