// Package routing is what a server tells a node about Gateways and Ingresses. The server
// (controlplane/gatewaycontrol) works out which connections and requests go where. The node
// (node/gateway) serves them. All names are chosen by the server: the node only compares
// them.
package routing

import (
	"net/netip"
	"strings"
	"time"
)

// State is everything that a node serves. Nobody changes a State or what it points to
// after it was given away.
type State struct {
	// Sockets are what the node listens on.
	Sockets map[string]*Socket `json:"sockets,omitempty"`
	// Routes are what listeners send requests and connections to.
	Routes map[string]*Route `json:"routes,omitempty"`
	// Backends are the endpoints of Services. They change most often.
	Backends map[string]*Backend `json:"backends,omitempty"`
	// Certificates are those that listeners show to clients, and backends ask for.
	Certificates map[string]*Certificate `json:"certificates,omitempty"`
}

// Update changes the State of a node. A stream of updates begins with one that is Whole.
// A nil value removes what has the name. A name that is not in the update stays as it was.
type Update struct {
	// Whole says that the update replaces everything that the node knew.
	Whole bool `json:"whole,omitempty"`
	State
}

// Transport is the protocol of a socket.
type Transport string

// These are the transports.
const (
	TCP Transport = "tcp"
	UDP Transport = "udp"
)

// Socket is a port that a node listens on, on all its addresses. Connections come from the
// service proxy: the port is the target port of a Service.
type Socket struct {
	Transport Transport `json:"transport"`
	// Port is the port of the socket.
	Port uint16 `json:"port"`
	// PublicPort is the port that clients connect to: the port of the listener.
	PublicPort uint16 `json:"publicPort"`
	// Listeners are the listeners of this socket. The host name of a connection or of a
	// request decides which listener serves it. If two listeners have the same host name, the
	// settings of the first one are used, and the routes of both.
	Listeners []Listener `json:"listeners,omitempty"`
	// Reserved are host names that belong to listeners of another transport of the same public
	// port: exact, with "*." in front, or empty for all others. This socket refuses connections
	// and requests for them.
	Reserved []string `json:"reserved,omitempty"`
	// HTTP3 says that the public port is also served by QUIC. Then answers of a TCP socket
	// say so (Alt-Svc). A UDP socket with HTTPS listeners speaks HTTP/3.
	HTTP3 bool `json:"http3,omitempty"`
	// ProxyProtocol says that connections of the trusted ranges begin with a header of the
	// PROXY protocol, version 1 or 2. Connections of others must not have one.
	ProxyProtocol bool `json:"proxyProtocol,omitempty"`
	// Trusted are ranges of proxies in front. Their X-Forwarded-* headers are believed.
	Trusted []netip.Prefix `json:"trusted,omitempty"`
	// AccessLog says that each request is logged.
	AccessLog bool `json:"accessLog,omitempty"`
}

// Protocol is what a listener speaks with clients.
type Protocol string

// These are the protocols. HTTPS and HTTP share no socket, except that TLS and HTTPS share
// one by server name.
const (
	HTTP           Protocol = "http"
	HTTPS          Protocol = "https"
	TLSPassthrough Protocol = "tls-passthrough"
	TLSTerminate   Protocol = "tls-terminate"
	RawTCP         Protocol = "tcp"
	RawUDP         Protocol = "udp"
)

// Listener is a listener of a Gateway, or what Ingresses need.
type Listener struct {
	// Name is for the access log and for metrics: NAMESPACE/GATEWAY/LISTENER.
	Name     string   `json:"name"`
	Protocol Protocol `json:"protocol"`
	// Hostname is what the client must ask for: exact, or with the wildcard "*." in front,
	// or empty for all names.
	Hostname string `json:"hostname,omitempty"`
	// Certificates are names of certificates. The first one that covers the server name is
	// shown, and else the first one.
	Certificates []string `json:"certificates,omitempty"`
	// ClientAuthorities has PEM certificates of authorities. If it is not empty, clients
	// show a certificate: AllowInsecureFallback says whether a connection without a valid
	// one goes on.
	ClientAuthorities     string `json:"clientAuthorities,omitempty"`
	AllowInsecureFallback bool   `json:"allowInsecureFallback,omitempty"`
	// Routes are the names of the routes that are attached, in no order.
	Routes []string `json:"routes,omitempty"`
	// Challenges answer those of an ACME authority (HTTP-01): the answer to each token. They
	// come before all routes.
	Challenges map[string]string `json:"challenges,omitempty"`
	// ChallengeCertificates are names of certificates for clients that offer only the
	// protocol acme-tls/1 (TLS-ALPN-01), by server name.
	ChallengeCertificates map[string]string `json:"challengeCertificates,omitempty"`
}

// RequiredAuthorities returns the ClientAuthorities without whose certificate no client gets
// in. It is empty if the listener lets others in, too.
func (l *Listener) RequiredAuthorities() string {
	if l.AllowInsecureFallback {
		return ""
	}
	return l.ClientAuthorities
}

// Route is what one route object asks of one or several listeners.
type Route struct {
	// Name is for the access log and for metrics: KIND/NAMESPACE/NAME.
	Name string `json:"name"`
	// Created orders routes: the older one wins. Then Name does.
	Created time.Time `json:"created,omitzero"`
	// Hostnames are the host names of requests or connections, exact or with "*." in front.
	// Empty means all names of the listener. The server has already left out what does not
	// fit any listener; the node intersects them with the listener's own.
	Hostnames []string `json:"hostnames,omitempty"`
	// SingleLabel says that the wildcard of a host name stands for exactly one label, as in
	// an Ingress: "*.example.com" is a.example.com, and not a.b.example.com. Without it the
	// wildcard stands for one or more labels, as in the Gateway API.
	SingleLabel bool `json:"singleLabel,omitempty"`
	// Rules are those of HTTP requests.
	Rules []Rule `json:"rules,omitempty"`
	// Stream is what connections of TLS, TCP and UDP go to. Rules is empty then.
	Stream *Split `json:"stream,omitempty"`
}

// Namespace returns the namespace of the route object.
func (r *Route) Namespace() string {
	_, rest, _ := strings.Cut(r.Name, "/")
	namespace, _, _ := strings.Cut(rest, "/")
	return namespace
}

// Split divides requests or connections between targets by their weights.
type Split struct {
	Targets []Target `json:"targets,omitempty"`
	// Session keeps clients with their endpoint, or is nil.
	Session *Session `json:"session,omitempty"`
}

// Target is a backend with a weight.
type Target struct {
	// Backend is the name of a backend. If it is empty or unknown, requests of this target
	// are answered with Fault, and connections are closed.
	Backend string `json:"backend,omitempty"`
	// Fault is the status for requests without a backend: 500 or 503.
	Fault  int `json:"fault,omitempty"`
	Weight int `json:"weight"`
	// Filters apply only to requests to this target.
	Filters []Filter `json:"filters,omitempty"`
}

// Session is session persistence by cookie or by header.
type Session struct {
	// Name is the name of the cookie or of the header.
	Name   string `json:"name"`
	Header bool   `json:"header,omitempty"`
	// Absolute and Idle are how long a session lasts. Zero is without a limit.
	Absolute time.Duration `json:"absolute,omitempty"`
	Idle     time.Duration `json:"idle,omitempty"`
	// Permanent says that the cookie has an end, and outlives the browser.
	Permanent bool `json:"permanent,omitempty"`
}

// Rule is a rule of a route: what matches, and what happens.
type Rule struct {
	// Name is that of the user, or empty.
	Name string `json:"name,omitempty"`
	// Matches are alternatives. The most specific match of all routes wins. Empty means
	// every path.
	Matches []Match  `json:"matches,omitempty"`
	Filters []Filter `json:"filters,omitempty"`
	Split
	// GRPC says that the rule is of a GRPCRoute: faults are answered as gRPC does.
	GRPC bool `json:"grpc,omitempty"`
	// Timeout is for the whole request, and BackendTimeout for each attempt. Zero is
	// without a limit.
	Timeout        time.Duration `json:"timeout,omitempty"`
	BackendTimeout time.Duration `json:"backendTimeout,omitempty"`
	Retry          *Retry        `json:"retry,omitempty"`
	// MaxBody is how many bytes the body of a request may have. Zero is without a limit.
	MaxBody int64 `json:"maxBody,omitempty"`
	// Auth is what clients must show, or nil.
	Auth *BasicAuth `json:"auth,omitempty"`
}

// BasicAuth asks clients for a name and a password.
type BasicAuth struct {
	Realm string `json:"realm,omitempty"`
	// Users is in the format of htpasswd: NAME:HASH lines, with bcrypt, SHA-1 and apr1.
	Users string `json:"users"`
}

// Retry repeats attempts.
type Retry struct {
	// Codes are the statuses after which a request is repeated.
	Codes []int `json:"codes,omitempty"`
	// Attempts is how often at most.
	Attempts int `json:"attempts"`
	// Backoff is the wait before each repetition, at least.
	Backoff time.Duration `json:"backoff,omitempty"`
}

// MatchType says how a text is compared.
type MatchType string

// These are the types of matches. PathPrefix compares whole parts of a path. Regexp is RE2
// and must match the whole text.
const (
	Exact      MatchType = "exact"
	PathPrefix MatchType = "prefix"
	Regexp     MatchType = "regexp"
)

// Match is what a request must have: all of it.
type Match struct {
	// PathType is PathPrefix with the Path "/" if the user gave none.
	PathType MatchType `json:"pathType"`
	Path     string    `json:"path"`
	// Method is a method of HTTP, or empty for all.
	Method  string  `json:"method,omitempty"`
	Headers []Field `json:"headers,omitempty"`
	Query   []Field `json:"query,omitempty"`
}

// Field is a header or a parameter of the query that a request must have.
type Field struct {
	Type MatchType `json:"type"`
	// Name is compared without regard to case for a header, and exactly for a parameter.
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Filter changes a request or its answer. Exactly one of the fields is set.
type Filter struct {
	RequestHeaders  *Headers  `json:"requestHeaders,omitempty"`
	ResponseHeaders *Headers  `json:"responseHeaders,omitempty"`
	Redirect        *Redirect `json:"redirect,omitempty"`
	Rewrite         *Rewrite  `json:"rewrite,omitempty"`
	Mirror          *Mirror   `json:"mirror,omitempty"`
	CORS            *CORS     `json:"cors,omitempty"`
	// Fault answers every request with this status: the filter of the user cannot be used.
	Fault int `json:"fault,omitempty"`
}

// Headers changes headers: first Set, then Add, then Remove.
type Headers struct {
	Set    []Header `json:"set,omitempty"`
	Add    []Header `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Header is a header with its value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Path replaces the path of a request. If Prefix is true, Value replaces only the prefix
// that the match of the rule has.
type Path struct {
	Prefix bool   `json:"prefix,omitempty"`
	Value  string `json:"value"`
}

// Redirect answers with another URL. A part of the URL whose field is empty or nil stays as
// the client sent it.
type Redirect struct {
	Scheme   string `json:"scheme,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	Path     *Path  `json:"path,omitempty"`
	// Port is zero if the user gave none: then it is the well-known one of a Scheme that is
	// given, or else the public port of the socket.
	Port uint16 `json:"port,omitempty"`
	// Code is 301, 302, 303, 307 or 308.
	Code int `json:"code"`
}

// Rewrite changes what the backend sees.
type Rewrite struct {
	Hostname string `json:"hostname,omitempty"`
	Path     *Path  `json:"path,omitempty"`
}

// Mirror sends a copy of some requests to another backend. Nobody waits for its answer.
type Mirror struct {
	Backend string `json:"backend"`
	// Numerator of Denominator requests are copied.
	Numerator   int `json:"numerator"`
	Denominator int `json:"denominator"`
}

// CORS answers the questions of browsers about other origins.
type CORS struct {
	// AllowOrigins are origins, also with "*" as the first part of the host name, or "*".
	AllowOrigins     []string `json:"allowOrigins,omitempty"`
	AllowMethods     []string `json:"allowMethods,omitempty"`
	AllowHeaders     []string `json:"allowHeaders,omitempty"`
	ExposeHeaders    []string `json:"exposeHeaders,omitempty"`
	AllowCredentials bool     `json:"allowCredentials,omitempty"`
	// MaxAge is in seconds.
	MaxAge int `json:"maxAge,omitempty"`
}

// BackendProtocol is what a backend speaks.
type BackendProtocol string

// These are the protocols of backends. PlainHTTP is HTTP/1.1, also for WebSocket. PlainH2
// is HTTP/2 without TLS.
const (
	PlainHTTP BackendProtocol = ""
	PlainH2   BackendProtocol = "h2c"
)

// Backend is a port of a Service.
type Backend struct {
	// Name is for the access log and for metrics: NAMESPACE/SERVICE:PORT.
	Name     string          `json:"name"`
	Protocol BackendProtocol `json:"protocol,omitempty"`
	// Endpoints are those that are ready. If there are none, the server puts those here that
	// are terminating and still serve.
	Endpoints []netip.AddrPort `json:"endpoints,omitempty"`
	// TLS is nil if the backend speaks no TLS.
	TLS *BackendTLS `json:"tls,omitempty"`
}

// BackendTLS is how a backend proves who it is.
type BackendTLS struct {
	// ServerName is what is asked for, and what the certificate must be for, unless Names
	// has others.
	ServerName string `json:"serverName"`
	// Names are DNS names and URIs. The certificate must have one of them.
	Names []string `json:"names,omitempty"`
	URIs  []string `json:"uris,omitempty"`
	// Authorities has PEM certificates. If it is empty, those of the host are used.
	Authorities string `json:"authorities,omitempty"`
	// Insecure says that any certificate will do: an Ingress asks for HTTPS and names no
	// authority.
	Insecure bool `json:"insecure,omitempty"`
	// ClientCertificate is the name of a certificate to show, or empty.
	ClientCertificate string `json:"clientCertificate,omitempty"`
}

// Certificate is a certificate with its key.
type Certificate struct {
	// Chain and Key are PEM.
	Chain string `json:"chain"`
	Key   string `json:"key"`
}
