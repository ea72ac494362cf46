package routing

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// These are the limits of what Check accepts. Lengths are in bytes.
const (
	maxNames    = 100_000 // of each kind in an update
	maxName     = 1024
	maxHostname = 253
	maxText     = 8 << 10 // of a path, or of the value of a header
	maxPEM      = 1 << 20 // what a Secret or a ConfigMap can have
	maxWeight   = 1_000_000
	maxAttempts = 1000
	// maxDuration is more than the longest duration of the Gateway API, 99999h59m59s999ms.
	maxDuration = 100_000 * time.Hour
)

// Check returns an error if an update has something that a server never sends. After Check,
// texts that become part of requests and answers are valid there, regular expressions
// compile, and numbers are in their ranges. Check does not know earlier updates, so names
// may be unknown. It does not read PEM: a certificate may be one that TLS cannot use.
//
// A server leaves out what Check of a socket, route, backend or certificate refuses,
// because a node refuses the whole update.
func (u *Update) Check() error {
	return errors.Join(
		checkAll("socket", u.Sockets, (*Socket).Check),
		checkAll("route", u.Routes, (*Route).Check),
		checkAll("backend", u.Backends, (*Backend).Check),
		checkAll("certificate", u.Certificates, (*Certificate).Check),
		checkPorts(u.Sockets),
	)
}

// checkAll checks the values of one kind, and returns the first error.
func checkAll[V any](kind string, all map[string]*V, check func(*V) error) error {
	if len(all) > maxNames {
		return fmt.Errorf("an update has %d values of the kind %s, which is more than %d", len(all), kind, maxNames)
	}
	for name, value := range all {
		if !isName(name) {
			return fmt.Errorf("invalid name of a %s %q", kind, name)
		}
		if value == nil {
			continue
		}
		if err := check(value); err != nil {
			return fmt.Errorf("%s %s: %w", kind, name, err)
		}
	}
	return nil
}

// checkPorts refuses two sockets with the same port.
func checkPorts(sockets map[string]*Socket) error {
	type port struct {
		transport Transport
		number    uint16
	}
	seen := map[port]bool{}
	for name, s := range sockets {
		if s == nil {
			continue
		}
		if seen[port{s.Transport, s.Port}] {
			return fmt.Errorf("socket %s has the port %d/%s of another socket", name, s.Port, s.Transport)
		}
		seen[port{s.Transport, s.Port}] = true
	}
	return nil
}

// Check returns an error if no server sends such a socket.
func (s *Socket) Check() error {
	switch {
	case s.Transport != TCP && s.Transport != UDP:
		return fmt.Errorf("invalid transport %q", s.Transport)
	case s.Port == 0 || s.PublicPort == 0:
		return errors.New("a port is 0")
	}
	for _, prefix := range s.Trusted {
		if !prefix.IsValid() {
			return errors.New("invalid range of trusted proxies")
		}
	}
	for _, name := range s.Reserved {
		if name != "" && !isHostname(name, true) {
			return fmt.Errorf("invalid reserved name %q", name)
		}
	}
	for i := range s.Listeners {
		if err := s.Listeners[i].check(s.Transport); err != nil {
			return fmt.Errorf("listener %q: %w", s.Listeners[i].Name, err)
		}
	}
	return nil
}

func (l *Listener) check(transport Transport) error {
	switch l.Protocol {
	case HTTPS: // HTTP/1.1 and HTTP/2 over TCP, HTTP/3 over UDP
	case HTTP, TLSPassthrough, TLSTerminate, RawTCP:
		if transport != TCP {
			return fmt.Errorf("protocol %s needs TCP", l.Protocol)
		}
	case RawUDP:
		if transport != UDP {
			return fmt.Errorf("protocol %s needs UDP", l.Protocol)
		}
	default:
		return fmt.Errorf("invalid protocol %q", l.Protocol)
	}
	if !isName(l.Name) {
		return errors.New("invalid name")
	}
	if l.Hostname != "" && !isHostname(l.Hostname, true) {
		return fmt.Errorf("invalid host name %q", l.Hostname)
	}
	if len(l.ClientAuthorities) > maxPEM {
		return errors.New("the client authorities are too large")
	}
	for _, name := range slices.Concat(l.Certificates, l.Routes) {
		if !isName(name) {
			return fmt.Errorf("invalid name %q", name)
		}
	}
	for token, answer := range l.Challenges {
		// Both have the letters of base64url, and the answer has a dot (RFC 8555, section 8.1).
		if !isVisible(token) || strings.Contains(token, "/") || !isVisible(answer) || len(token)+len(answer) > maxName {
			return errors.New("invalid ACME challenge")
		}
	}
	for server, name := range l.ChallengeCertificates {
		if !isHostname(server, false) || !isName(name) {
			return fmt.Errorf("invalid ACME certificate %q for %q", name, server)
		}
	}
	return nil
}

// Check returns an error if no server sends such a backend.
func (b *Backend) Check() error {
	if !isName(b.Name) {
		return errors.New("invalid name")
	}
	if b.Protocol != PlainHTTP && b.Protocol != PlainH2 {
		return fmt.Errorf("invalid protocol %q", b.Protocol)
	}
	if i := slices.IndexFunc(b.Endpoints, func(e netip.AddrPort) bool {
		address := e.Addr()
		return !e.IsValid() || e.Port() == 0 || address.Zone() != "" || address.IsUnspecified() || address.IsMulticast()
	}); i >= 0 {
		return fmt.Errorf("invalid endpoint %s", b.Endpoints[i])
	}
	if b.TLS == nil {
		return nil
	}
	if b.TLS.ServerName != "" && !isHostname(b.TLS.ServerName, false) {
		return fmt.Errorf("invalid server name %q", b.TLS.ServerName)
	}
	for _, name := range b.TLS.Names {
		if !isHostname(name, true) {
			return fmt.Errorf("invalid name in certificates %q", name)
		}
	}
	for _, uri := range b.TLS.URIs {
		if !isVisible(uri) || len(uri) > maxText {
			return fmt.Errorf("invalid URI in certificates %q", uri)
		}
	}
	if len(b.TLS.Authorities) > maxPEM {
		return errors.New("the authorities are too large")
	}
	if b.TLS.ClientCertificate != "" && !isName(b.TLS.ClientCertificate) {
		return fmt.Errorf("invalid name of a certificate %q", b.TLS.ClientCertificate)
	}
	return nil
}

// Check returns an error if no server sends such a certificate.
func (c *Certificate) Check() error {
	for part, text := range map[string]string{"chain": c.Chain, "key": c.Key} {
		if text == "" || len(text) > maxPEM {
			return fmt.Errorf("the %s has %d bytes; 1 to %d are possible", part, len(text), maxPEM)
		}
	}
	return nil
}
