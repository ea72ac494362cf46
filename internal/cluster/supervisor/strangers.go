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
	// maxStrangers is how many connections of strangers are open at once. Each takes
	// about 40 KiB once its TLS handshake is done. A thousand agents that join from
	// behind one address have about as many for a moment.
	maxStrangers = 512
	// strangerPatience is how long a connection may take from its beginning to its first
	// request: a TLS handshake is in between, which takes seconds on a small board that is
	// busy.
	strangerPatience = 20 * time.Second
	// strangerIdle is how long a connection of a stranger may take from the answer to one
	// request to the next. http.Server has no limit for a body that is announced and
	// never comes, once the request is answered.
	strangerIdle = 90 * time.Second
)

// strangers are the open connections over which nobody has proved yet to be known: no
// credentials were shown that the server accepted. There are no more than limit of
// them. One too many closes the oldest of the address that has the most. So a host that
// opens thousands closes its own, and others are not held up; and those that are new
// get in even from the address of such a host, as behind NAT.
type strangers struct {
	limit          int
	patience, idle time.Duration

	mu    sync.Mutex
	count int
	// serial is how many there have been.
	serial uint64
	// hosts has the strangers of an address, the oldest first.
	hosts map[netip.Prefix]*list.List
}

// stranger is a connection that is one of them, at least at first.
type stranger struct {
	net.Conn
	all    *strangers
	host   netip.Prefix
	serial uint64
	// silence closes it.
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

// add takes in a connection, and returns the one that has to go for it, if one has to.
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

// hostOf returns what one host has for addresses: in IPv6 that is a /64.
func hostOf(address net.Addr) netip.Prefix {
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Prefix{} // no TCP: all of them are one host
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

// known makes a connection one of those that no limit is for. It may be called more
// than once.
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

// wait closes the connection unless it is known, or there is another request, within
// the time for that.
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

// remember is for http.Server.ConnContext: requests know their connection by it.
func (s *strangers) remember(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if tracked, ok := conn.(*connection); ok {
		conn = tracked.Conn
	}
	return context.WithValue(ctx, strangerKey{}, conn)
}

// judge lets requests pass, and makes their connection known once next has accepted the
// credentials of one.
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
		judged.answered(http.StatusOK) // what an answer without status is
	})
}

// showsCredentials tells whether a request has any that its handler looks at: one for
// whom they are wrong answers 401. /cacerts looks at none, and the API server at no
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

// judgedWriter sees the status of an answer to a request with credentials.
type judgedWriter struct {
	http.ResponseWriter
	conn   *stranger
	status int
}

// Unwrap is for http.ResponseController, and for WrapForHTTP1Or2.
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

// Flush implements http.Flusher, which every writer of http.Server does.
func (w *judgedWriter) Flush() {
	w.answered(http.StatusOK)
	w.ResponseWriter.(http.Flusher).Flush()
}

// Hijack implements http.Hijacker for those writers that do. Nothing upgrades a
// connection for a caller whom it does not know.
func (w *judgedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.answered(http.StatusSwitchingProtocols)
	return w.ResponseWriter.(http.Hijacker).Hijack()
}

// answered judges the first status of the answer. Of the refusals only 403 says that
// the caller is known: it names rights, and others may come before anybody looked at
// the credentials.
func (w *judgedWriter) answered(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	if status == http.StatusSwitchingProtocols || status >= 200 && status < 300 || status == http.StatusForbidden {
		w.conn.known()
	}
}
