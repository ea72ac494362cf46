package requests

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// table is everything by which requests are routed. It never changes. Only the backends that
// its targets refer to do.
type table struct {
	sockets map[string]*socket
	routes  map[string]*route
	// stats are by the names of routes for metrics.
	stats map[string]*stats
}

// socket is a socket with its listeners. Those that serve no HTTP are here, too: their host
// names are not those of less specific listeners.
type socket struct {
	// source is what the socket was compiled from.
	source     *routing.Socket
	publicPort uint16
	port       string // publicPort as text
	http3      bool
	trusted    []netip.Prefix
	accessLog  bool
	listeners  hosts.Table[*listener]
}

// listener is what the listeners of a socket with the same host name serve together.
type listener struct {
	// name, protocol and authorities are those of the first one. The protocol is empty if the
	// host name is reserved. The authorities, in PEM, are those of which clients must have a
	// certificate.
	name        string
	protocol    routing.Protocol
	authorities string
	challenges  map[string]string
	// routes are by the routes' own host names. Those that do not intersect with the host name
	// of the listener are of no harm: the host of each request fits the listener.
	routes hosts.Table[*rules]
}

// newTable compiles a state. It takes over what has not changed since the table before.
func newTable(state *routing.State, before *table, compile func(*routing.Route) *route) *table {
	t := &table{sockets: map[string]*socket{}, routes: map[string]*route{}, stats: map[string]*stats{}}
	same := true // whether all routes are as they were
	for name, source := range state.Routes {
		if source == nil || source.Stream != nil {
			continue
		}
		compiled := before.routes[name]
		if compiled == nil || compiled.source != source {
			compiled, same = compile(source), false
		}
		t.routes[name] = compiled
		if t.stats[compiled.name] == nil {
			t.stats[compiled.name] = before.stats[compiled.name]
		}
		if t.stats[compiled.name] == nil {
			t.stats[compiled.name] = new(stats)
		}
		if compiled.stats == nil {
			compiled.stats = t.stats[compiled.name]
		}
	}
	same = same && len(t.routes) == len(before.routes)
	for name, source := range state.Sockets {
		if source == nil {
			continue
		}
		if compiled := before.sockets[name]; same && compiled != nil && compiled.source == source {
			t.sockets[name] = compiled
		} else {
			t.sockets[name] = newSocket(source, t.routes)
		}
	}
	return t
}

func newSocket(from *routing.Socket, routes map[string]*route) *socket {
	s := &socket{source: from, publicPort: from.PublicPort, port: strconv.Itoa(int(from.PublicPort)), http3: from.HTTP3, trusted: from.Trusted, accessLog: from.AccessLog}
	attached := map[*listener]map[string]bool{}
	for _, name := range from.Reserved {
		s.listeners.Set(name, &listener{})
	}
	for i := range from.Listeners {
		source := &from.Listeners[i]
		l := s.listeners.Entry(source.Hostname, func() *listener {
			created := &listener{name: source.Name, protocol: source.Protocol, authorities: source.RequiredAuthorities(), challenges: map[string]string{}}
			attached[created] = map[string]bool{}
			return created
		})
		if !l.speaksHTTP() || source.Protocol != l.protocol {
			continue
		}
		maps.Copy(l.challenges, source.Challenges)
		for _, name := range source.Routes {
			if compiled := routes[name]; compiled != nil && !attached[l][name] {
				attached[l][name] = true
				l.attach(compiled)
			}
		}
	}
	for l := range attached {
		for of := range l.routes.All() {
			of.sort()
		}
	}
	return s
}

// speaksHTTP tells whether requests of the host name are served here.
func (l *listener) speaksHTTP() bool {
	return l.protocol == routing.HTTP || l.protocol == routing.HTTPS
}

// attach adds the matches of a route under each of its host names.
func (l *listener) attach(r *route) {
	names := slices.Clone(r.source.Hostnames)
	for i := range names {
		names[i] = strings.ToLower(names[i])
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		of := l.routes.Entry(name, func() *rules { return newRules(name) })
		for _, m := range r.matches {
			of.add(m)
		}
	}
}

// find returns the match that takes a request for a host, or nil. Matches under the most
// specific host name come first. If none of them fits, those of the next one are asked: the
// Gateway API gives the more specific name only precedence (HTTPRouteSpec.Hostnames), and in an
// Ingress a rule for a wildcard or for all hosts serves the paths that an exact host has not.
func (l *listener) find(host hosts.Name, q *question) *match {
	for of := range l.routes.Fitting(host) {
		q.deep = of.isDeep(host.String())
		if m := of.find(q); m != nil {
			return m
		}
	}
	return nil
}
