package sockets

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// kind is what a socket does with a connection.
type kind int

const (
	kindHTTP   kind = iota // HTTP without TLS
	kindTLS                // the server name decides
	kindStream             // bytes or datagrams go to a backend
)

// settings are what connections of a socket look at. Nobody changes them.
type settings struct {
	name    string
	kind    kind
	proxies bool // the trusted ones send a header of the PROXY protocol
	trusted []netip.Prefix
	// altSvc is the header that tells clients about HTTP/3, or empty.
	altSvc string
	// stream is where all connections go, or nil.
	stream *routing.Split
	tlsSettings
}

// tlsSettings are those of a socket of kind kindTLS.
type tlsSettings struct {
	listeners hosts.Table[*tlsListener]
	// challenges show the certificate of an ACME challenge, by server name.
	challenges hosts.Table[*tls.Config]
	// records says that the bytes of handshakes are kept, for backends that end TLS.
	records bool
	// silent says that a connection which no listener wants is closed without an alert of
	// TLS. The Gateway API wants it so for TLSRoutes.
	silent bool
}

// tlsListener is what serves the connections of a host name.
type tlsListener struct {
	// protocol is empty if the name is reserved: then nobody serves it.
	protocol routing.Protocol
	// config is nil for routing.TLSPassthrough.
	config *tls.Config
	// authorities are those that clients must have a certificate of, in PEM, or empty.
	authorities string
	// routes are those of connections.
	routes hosts.Table[*routing.Route]
}

// decide returns the server name of a handshake, and the listener that answers it: nil if there
// is none. It is the only place that decides about the listener of a connection.
func (t *tlsSettings) decide(hello *tls.ClientHelloInfo) (hosts.Name, *tlsListener) {
	name, is := hosts.FromServerName(hello.ServerName)
	if !is {
		return hosts.Name{}, nil
	}
	listener, ok := t.listeners.Best(name)
	if !ok || listener.protocol == "" {
		return name, nil
	}
	return name, listener
}

// shownBy returns what the client of a connection has shown to this listener.
func (l *tlsListener) shownBy(name hosts.Name) hosts.Shown {
	return hosts.Shown{Name: name, Authorities: l.authorities}
}

func (s *settings) trusts(client netip.Addr) bool {
	return slices.ContainsFunc(s.trusted, func(p netip.Prefix) bool { return p.Contains(client) })
}

// compileLocked returns the settings of all sockets of the state.
func (s *Sockets) compileLocked() map[key]*settings {
	state := s.state.Load()
	c := &compiler{state: state, certificates: s.certificates, used: certificates{}, reported: map[string]bool{}}
	c.report = func(format string, arguments ...any) {
		message := fmt.Sprintf(format, arguments...)
		if !s.reported[message] && !c.reported[message] {
			s.log.Warn(message)
		}
		c.reported[message] = true
	}
	all := map[key]*settings{}
	for _, name := range sorted(state.Sockets) {
		socket := state.Sockets[name]
		if socket == nil || len(socket.Listeners) == 0 {
			continue
		}
		compiled := c.socket(name, socket)
		key := key{transport: socket.Transport, port: socket.Port, quic: socket.Transport == routing.UDP && compiled.kind != kindStream}
		if other := all[key]; other != nil {
			c.report("Socket %s has port %s, which %s has already: it is not opened", name, key, other.name)
			continue
		}
		all[key] = compiled
	}
	s.certificates, s.reported = c.used, c.reported
	return all
}

// compiler makes settings of a state.
type compiler struct {
	state *routing.State
	// certificates are those of the state before. used are those of this one.
	certificates, used certificates
	reported           map[string]bool
	report             func(format string, arguments ...any)
}

func (c *compiler) socket(name string, socket *routing.Socket) *settings {
	settings := &settings{name: name, proxies: socket.ProxyProtocol, trusted: socket.Trusted}
	switch socket.Listeners[0].Protocol {
	case routing.HTTP:
		settings.kind = kindHTTP
	case routing.RawTCP, routing.RawUDP:
		settings.kind = kindStream
		var routes hosts.Table[*routing.Route]
		for i := range socket.Listeners {
			c.addRoutes(&routes, &socket.Listeners[i])
		}
		var oldest *routing.Route
		for route := range routes.All() {
			if oldest == nil || older(route, oldest) {
				oldest = route
			}
		}
		if oldest != nil {
			settings.stream = oldest.Stream
		}
	default:
		settings.kind = kindTLS
		if socket.HTTP3 {
			settings.altSvc = fmt.Sprintf(`h3=":%d"; ma=86400`, socket.PublicPort)
		}
		settings.tlsSettings = c.tls(socket)
	}
	return settings
}

// tls returns the settings of a socket whose listeners are chosen by server name.
func (c *compiler) tls(socket *routing.Socket) tlsSettings {
	compiled := tlsSettings{}
	quic := socket.Transport == routing.UDP
	for _, name := range socket.Reserved {
		compiled.listeners.Set(name, &tlsListener{})
	}
	for i := range socket.Listeners {
		listener := &socket.Listeners[i]
		switch listener.Protocol {
		case routing.HTTPS:
		case routing.TLSPassthrough, routing.TLSTerminate:
			if quic {
				continue
			}
			compiled.silent = true
			compiled.records = compiled.records || listener.Protocol == routing.TLSPassthrough
		default:
			c.report("Listener %s speaks %s, which cannot share port %d with TLS: it is not served", listener.Name, listener.Protocol, socket.PublicPort)
			continue
		}
		first := compiled.listeners.Entry(listener.Hostname, func() *tlsListener { return c.listener(listener, quic) })
		if first.protocol == listener.Protocol {
			c.addRoutes(&first.routes, listener)
		}
		if quic {
			continue // An ACME authority asks over TCP.
		}
		for server, name := range listener.ChallengeCertificates {
			if certificate := c.certificate(name, listener); certificate != nil {
				compiled.challenges.Set(server, &tls.Config{
					MinVersion: tls.VersionTLS12, NextProtos: []string{acmeProtocol},
					Certificates: []tls.Certificate{*certificate}, SessionTicketsDisabled: true,
				})
			}
		}
	}
	return compiled
}

// listener returns the first listener of a host name, without its routes.
func (c *compiler) listener(from *routing.Listener, quic bool) *tlsListener {
	compiled := &tlsListener{protocol: from.Protocol, authorities: from.RequiredAuthorities()}
	if from.Protocol != routing.TLSPassthrough {
		compiled.config = c.config(from, quic)
	}
	return compiled
}

// addRoutes adds the routes of a listener that connections go to. Of two with the same host
// name the older one stays.
func (c *compiler) addRoutes(routes *hosts.Table[*routing.Route], listener *routing.Listener) {
	for _, name := range listener.Routes {
		route := c.state.Routes[name]
		if route == nil || route.Stream == nil {
			continue
		}
		names := route.Hostnames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, hostname := range names {
			if oldest := routes.Entry(hostname, func() *routing.Route { return route }); older(route, oldest) {
				routes.Set(hostname, route)
			}
		}
	}
}

// older tells whether a route wins over another one.
func older(a, b *routing.Route) bool {
	if a.Created.Equal(b.Created) {
		return a.Name < b.Name
	}
	return a.Created.Before(b.Created)
}
