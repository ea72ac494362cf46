package requests

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// challengePath is where an ACME authority asks for the answers of challenges (RFC 8555,
// section 8.3).
const challengePath = "/.well-known/acme-challenge/"

// statusGone is the status in the log for requests whose client has gone away. Nobody gets it.
// Source: nginx.
const statusGone = 499

// exchange is a request on its way, and its answer.
type exchange struct {
	*Requests
	r        *http.Request
	w        answerWriter
	began    time.Time
	socket   *socket
	listener *listener
	match    *match
	rule     *rule
	// host is the name that the client asks for.
	host     hosts.Name
	path     path
	client   client
	body     *body
	answered []*filters // those of rule and target, in filters
	filters  [2]*filters
	backend  string
	endpoint string
	// hops is how many gateways the request has come through.
	hops int
}

// Serve answers a request that came in at the socket with a name. Like a http.Handler, it may
// panic with http.ErrAbortHandler to end the connection.
func (q *Requests) Serve(w http.ResponseWriter, r *http.Request, name string) {
	// HTTP/2 and HTTP/3 leave a Host header in the map beside the :authority, which is r.Host.
	// Backends must not get the one after the other has chosen the rule.
	delete(r.Header, "Host")
	x := &exchange{Requests: q, r: r, began: time.Now()}
	x.w.ResponseWriter = w
	x.answered = x.filters[:0]
	defer x.finish()
	if x.socket = q.table.Load().sockets[name]; x.socket == nil {
		x.client = clientOf(r, nil)
		x.fail(http.StatusNotFound)
		return
	}
	x.client = clientOf(r, x.socket.trusted)
	if len(r.TransferEncoding) > 0 {
		// The client may have sent a length, too. Package http removes the length. A proxy in front of the gateway may have
		// counted by the length, and would find the end of this request in another place. So the connection must end after
		// the answer (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
	if x.socket.http3 && r.TLS != nil && r.ProtoMajor < 3 {
		w.Header().Set("Alt-Svc", altSvc(x.socket.publicPort))
	}
	if status := x.route(); status != 0 {
		x.fail(status)
		return
	}
	if x.match == nil {
		return // answered
	}
	stats := x.rule.route.stats
	stats.begin()
	defer stats.end(x)
	x.serve()
}

// isToken tells whether a text can be a method (RFC 9110, section 9.1). Names of header fields are tokens too.
func isToken(text string) bool { return httpguts.ValidHeaderFieldName(text) }

// route finds the match that takes the request. It returns a status if there is none.
func (x *exchange) route() (status int) {
	r := x.r
	host, is := hosts.FromHeader(r.Host)
	// With HTTP/2 and HTTP/3 a method can have blanks. The server of a backend would find another path behind them.
	if !is || !isToken(r.Method) {
		return http.StatusBadRequest
	}
	x.host = host
	l, found := x.socket.listeners.Best(host)
	if !found {
		return http.StatusNotFound
	}
	if x.listener = l; !x.admitted() {
		return http.StatusMisdirectedRequest
	}
	if token, is := strings.CutPrefix(r.URL.Path, challengePath); is && len(x.listener.challenges) > 0 {
		if answer, is := x.listener.challenges[token]; is && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			x.w.Header().Set("Content-Type", "application/octet-stream")
			x.w.WriteHeader(http.StatusOK)
			_, _ = x.w.Write([]byte(answer))
			return 0
		}
	}
	if r.Method == http.MethodConnect {
		return http.StatusMethodNotAllowed // a gateway is no way to anywhere else
	}
	raw := r.URL.RawPath
	if raw == "" {
		raw = r.URL.EscapedPath() // as the client has sent it, if RawPath is empty
	}
	var err error
	if x.path, err = parsePath(raw); err != nil || !isSafe(r.URL.RawQuery) {
		return http.StatusBadRequest
	}
	q := question{path: x.path.match, method: r.Method, host: r.Host, header: r.Header, rawQuery: r.URL.RawQuery}
	x.match = x.listener.find(host, &q)
	if x.match == nil && isPreflight(r) {
		// A rule for POST answers a question about POST.
		q.method = r.Header.Get(requestMethod)
		if m := x.listener.find(host, &q); m != nil && m.rule.cors != nil {
			x.match = m
		}
	}
	if x.guarded(x.match, q) {
		x.match = nil
		x.refuse(http.StatusBadRequest, ambiguous)
		return 0
	}
	if x.match == nil {
		return http.StatusNotFound
	}
	x.rule = x.match.rule
	return 0
}

// admitted tells whether the connection of the request belongs to its listener. The client has
// met the settings of TLS of the listener that its server name has, and must not get at what
// another listener protects. These settings may have changed since the handshake: then the
// client has to connect again, if it has not shown what is wanted by now.
func (x *exchange) admitted() bool {
	if x.r.TLS == nil {
		return x.listener.protocol == routing.HTTP
	}
	shown, is := hosts.ShownIn(x.r.Context())
	if own, _ := x.socket.listeners.Best(shown.Name); !is || own != x.listener || x.listener.protocol != routing.HTTPS {
		return false
	}
	if x.listener.authorities == "" || x.listener.authorities == shown.Authorities {
		return true
	}
	if x.r.ProtoMajor < 3 {
		x.w.Header().Set("Connection", "close") // HTTP/2 makes GOAWAY of it
	}
	return false
}

// serve does what the rule says.
func (x *exchange) serve() {
	rule := x.rule
	x.answered = append(x.answered, &rule.filters)
	if x.answer(&rule.filters) || !x.authenticated() {
		return
	}
	if rule.maxBody > 0 && x.r.ContentLength > rule.maxBody {
		x.fail(http.StatusRequestEntityTooLarge)
		return
	}
	sticky, t := x.sticky()
	if t == nil {
		t = rule.choose()
	}
	if t == nil {
		x.fail(http.StatusInternalServerError)
		return
	}
	x.answered = append(x.answered, &t.filters)
	if x.answer(&t.filters) {
		return
	}
	if t.backend == nil {
		x.fail(faultOf(t))
		return
	}
	// 508 is nothing that users repeat requests for.
	if x.hops = hopsOf(x.r.Header); x.hops >= maxHops {
		x.fail(http.StatusLoopDetected)
		return
	}
	x.forward(t, sticky)
}

// faultOf returns the status for requests to a target without a backend.
func faultOf(t *target) int {
	return cmp.Or(t.fault, http.StatusInternalServerError)
}

// secure tells whether the client uses HTTPS, also if a trusted proxy ends it.
func (x *exchange) secure() bool { return x.client.proto == "https" }

// pathOf returns the path filter's result for the request.
func (x *exchange) pathOf(p *routing.Path) string {
	if p.Prefix {
		return x.path.replacePrefix(x.match.path, p.Value)
	}
	return rooted(p.Value)
}
