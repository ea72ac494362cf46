package sockets

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// tlsEcho is a backend like echo that ends TLS itself.
func tlsEcho(t *testing.T, name string, ca *authority, server string) (backend *routing.Backend) {
	t.Helper()
	leaf := ca.leaf(server)
	pair, err := tls.X509KeyPair([]byte(leaf.Chain), []byte(leaf.Key))
	must(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	must(t, err)
	serve(t, listener, name)
	return &routing.Backend{Endpoints: []addrPort{addrPortOf(listener)}}
}

// TestServerNames follows the Gateway API's tests of TLSRoutes: listeners of all protocols
// share a socket, and the most specific host name wins, of listeners and then of routes.
func TestServerNames(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("web.example", "end.example", "none.example", "fault.example", "encrypted.example")
	for _, name := range []string{"abc.pass.example", "x.y.pass.example", "other.test"} {
		w.state.Backends[name] = tlsEcho(t, name, ca, name)
		w.state.Routes[name] = &routing.Route{Name: name, Stream: split(name)}
	}
	w.state.Routes["abc.pass.example"].Hostnames = []string{"abc.pass.example"}
	w.state.Routes["x.y.pass.example"].Hostnames = []string{"*.example"}
	w.state.Routes["other.test"].Hostnames = []string{"*.test"}
	w.state.Backends["plain"] = &routing.Backend{Endpoints: []addrPort{echo(t, "plain")}}
	w.state.Routes["plain"] = &routing.Route{Stream: split("plain"), Hostnames: []string{"end.example"}}
	w.state.Routes["fault"] = &routing.Route{Stream: &routing.Split{Targets: []routing.Target{{Weight: 1, Fault: 500}}}, Hostnames: []string{"fault.example"}}
	w.state.Backends["encrypted"] = &routing.Backend{Endpoints: []addrPort{echo(t, "encrypted")}, TLS: &routing.BackendTLS{ServerName: "a"}}
	w.state.Routes["encrypted"] = &routing.Route{Stream: split("encrypted"), Hostnames: []string{"encrypted.example"}}
	port := w.open("tls", routing.TCP,
		routing.Listener{Protocol: routing.HTTPS, Hostname: "web.example", Certificates: []string{"c"}},
		routing.Listener{Protocol: routing.TLSTerminate, Hostname: "*.example", Certificates: []string{"c"}, Routes: []string{"plain", "fault", "encrypted"}},
		routing.Listener{Protocol: routing.TLSPassthrough, Hostname: "*.pass.example", Routes: []string{"abc.pass.example", "x.y.pass.example"}},
		routing.Listener{Protocol: routing.TLSPassthrough, Hostname: "*.test", Routes: []string{"other.test"}},
	)
	config := func(server string) *tls.Config {
		return &tls.Config{ServerName: server, RootCAs: ca.pool}
	}
	for _, test := range []struct{ server, want string }{
		{"abc.pass.example", "abc.pass.example\nhello"},
		{"ABC.pass.example", "abc.pass.example\nhello"},
		{"x.y.pass.example", "x.y.pass.example\nhello"},
		{"other.test", "other.test\nhello"},
		{"end.example", "plain\nhello"},
	} {
		c, err := dialTLS(port, config(test.server))
		if err != nil {
			t.Errorf("%s: %v", test.server, err)
			continue
		}
		if heard, err := hear(c, "hello"); heard != test.want || err != nil {
			t.Errorf("%s: %q, %v", test.server, heard, err)
		}
		_ = c.Close()
	}
	c, err := dialTLS(port, config("web.example"))
	must(t, err)
	if _, body, err := get(c, plainGet); err != nil || !strings.HasPrefix(body, "HTTP/1.1") {
		t.Errorf("the listener of HTTPS says %q, %v", body, err)
	}
	_ = c.Close()

	// No listener, no route, a backend that is missing: the connection is closed without an
	// alert of TLS.
	for _, server := range []string{"a.b", "test", "none.example", "fault.example", ""} {
		_, err := dialTLS(port, &tls.Config{ServerName: server, InsecureSkipVerify: true})
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %v", server, err)
		}
	}
	// A policy wants TLS to this backend, which speaks none.
	if c, err := dialTLS(port, config("encrypted.example")); err == nil {
		if heard, _ := hear(c, "hello"); heard != "" {
			t.Errorf("a backend that wants TLS got it in plain: %q", heard)
		}
		_ = c.Close()
	}
}

// TestChoiceOfCertificates prefers what covers the name and what the client supports.
func TestChoiceOfCertificates(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["first"] = ca.leaf("first.example")
	w.state.Certificates["rsa"] = ca.rsaLeaf("both.example")
	w.state.Certificates["ecdsa"] = ca.leaf("both.example", "*.wild.example")
	w.state.Certificates["broken"] = &routing.Certificate{Chain: "x", Key: "y"}
	port := w.open("web", routing.TCP, routing.Listener{Name: "ns/gw/l", Protocol: routing.HTTPS, Certificates: []string{"broken", "first", "missing", "ecdsa", "rsa"}})
	all := map[string]string{}
	for _, name := range []string{"first", "rsa", "ecdsa"} {
		pair, err := tls.X509KeyPair([]byte(w.state.Certificates[name].Chain), []byte(w.state.Certificates[name].Key))
		must(t, err)
		all[string(pair.Certificate[0])] = name
	}
	rsaOnly := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	for _, test := range []struct {
		server string
		suites []uint16
		want   string
	}{
		{"first.example", nil, "first"},
		{"both.example", nil, "ecdsa"},
		{"both.example", rsaOnly, "rsa"},
		{"a.wild.example", nil, "ecdsa"},
		{"a.b.wild.example", nil, "first"},
		{"unknown.example", nil, "first"},
		{"unknown.example", rsaOnly, "rsa"},
		{"", nil, "first"},
	} {
		config := &tls.Config{ServerName: test.server, InsecureSkipVerify: true, CipherSuites: test.suites}
		if test.suites != nil {
			config.MaxVersion = tls.VersionTLS12
		}
		c, err := dialTLS(port, config)
		if err != nil {
			t.Errorf("%s: %v", test.server, err)
			continue
		}
		if got := all[string(c.ConnectionState().PeerCertificates[0].Raw)]; got != test.want {
			t.Errorf("%s: got %s, want %s", test.server, got, test.want)
		}
		_ = c.Close()
	}
	for _, want := range []string{"Certificate broken of listener ns/gw/l cannot be used", "Listener ns/gw/l has no certificate missing yet"} {
		if strings.Count(w.log.text(), want) != 1 {
			t.Errorf("the log has not once %q: %s", want, w.log.text())
		}
	}
	w.apply()
	if strings.Count(w.log.text(), "cannot be used") != 1 {
		t.Error("it was said again")
	}
}

// TestClientCertificates follows the Gateway API's tests of frontend validation.
func TestClientCertificates(t *testing.T) {
	w := newWorld(t, nil)
	ca, clients, others := newAuthority(t, "ca"), newAuthority(t, "clients"), newAuthority(t, "others")
	w.state.Certificates["c"] = ca.leaf("strict.example", "lax.example", "open.example")
	listener := func(host string, authorities string, lax bool) routing.Listener {
		return routing.Listener{Protocol: routing.HTTPS, Hostname: host, Certificates: []string{"c"}, ClientAuthorities: authorities, AllowInsecureFallback: lax}
	}
	port := w.open("web", routing.TCP,
		listener("strict.example", clients.pem, false), listener("lax.example", clients.pem, true),
		listener("open.example", "", false), listener("broken.example", "no certificate", false))
	valid, invalid := clients.client(), others.client()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		// The client keeps tickets, which must not replace its certificate.
		tickets := tls.NewLRUClientSessionCache(10)
		for _, test := range []struct {
			server      string
			certificate *tls.Certificate
			ok          bool
		}{
			{"open.example", nil, true},
			{"strict.example", nil, false},
			{"strict.example", &valid, true},
			{"strict.example", &invalid, false},
			{"strict.example", nil, false},
			{"lax.example", nil, true},
			{"lax.example", &valid, true},
			{"lax.example", &invalid, true},
			{"broken.example", &valid, false},
		} {
			asked := false
			config := &tls.Config{ServerName: test.server, InsecureSkipVerify: true, MinVersion: version, MaxVersion: version, ClientSessionCache: sharedTickets{tickets}}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				asked = true
				if test.certificate == nil {
					return &tls.Certificate{}, nil
				}
				return test.certificate, nil
			}
			c, err := dialTLS(port, config)
			if err == nil {
				_, _, err = get(c, plainGet)
				_ = c.Close()
			}
			if (err == nil) != test.ok || asked != (test.server != "open.example") {
				t.Errorf("%s with version %x: %v, was asked: %v", test.server, version, err, asked)
			}
		}
	}
}

// sharedTickets offers the ticket of one server to all, as an attacker would.
type sharedTickets struct{ tls.ClientSessionCache }

func (s sharedTickets) Get(string) (*tls.ClientSessionState, bool) {
	return s.ClientSessionCache.Get("")
}

func (s sharedTickets) Put(_ string, state *tls.ClientSessionState) {
	if state != nil {
		s.ClientSessionCache.Put("", state)
	}
}

// TestTicketsOutliveCertificates resumes a session after the certificate has changed.
func TestTicketsOutliveCertificates(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example")
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTPS, Certificates: []string{"c"}})
	config := &tls.Config{ServerName: "a.example", RootCAs: ca.pool, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 3 {
		c, err := dialTLS(port, config)
		must(t, err)
		if _, _, err := get(c, plainGet); err != nil { // reads the ticket, too
			t.Error(err)
		}
		if resumed := c.ConnectionState().DidResume; resumed != (i > 0) {
			t.Errorf("connection %d was resumed: %v", i, resumed)
		}
		_ = c.Close()
		w.state.Certificates["c"] = ca.leaf("a.example")
		w.apply()
	}
}

// TestChallenge shows the certificate of an ACME challenge to an authority only.
func TestChallenge(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"], w.state.Certificates["challenge"] = ca.leaf("a.example"), ca.leaf("a.example")
	port := w.open("web", routing.TCP, routing.Listener{
		Protocol: routing.HTTPS, Hostname: "*.example", Certificates: []string{"c"}, ChallengeCertificates: map[string]string{"a.example": "challenge"},
	})
	shown := func(protocols ...string) string {
		c, err := dialTLS(port, &tls.Config{ServerName: "a.example", RootCAs: ca.pool, NextProtos: protocols})
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		for name, certificate := range w.state.Certificates {
			pair, err := tls.X509KeyPair([]byte(certificate.Chain), []byte(certificate.Key))
			must(t, err)
			if slices.Equal(pair.Certificate[0], c.ConnectionState().PeerCertificates[0].Raw) {
				return name + " " + c.ConnectionState().NegotiatedProtocol
			}
		}
		return ""
	}
	if got := shown("acme-tls/1"); got != "challenge acme-tls/1" {
		t.Errorf("an authority sees %s", got)
	}
	if got := shown("acme-tls/1", "http/1.1"); got != "c http/1.1" {
		t.Errorf("a client sees %s", got)
	}
	w.state.Sockets["web"].Listeners[0].ChallengeCertificates = nil
	w.apply()
	if got := shown("acme-tls/1"); !strings.Contains(got, "no application protocol") {
		t.Errorf("without a challenge an authority sees %s", got)
	}
}

// TestChallengeOfFirstCertificate serves an ACME authority while the listener has no certificate
// yet. Other clients are refused.
func TestChallengeOfFirstCertificate(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["challenge"] = ca.leaf("a.example")
	challenges := map[string]string{"a.example": "challenge"}
	for name, listener := range map[string]routing.Listener{
		"no certificates":  {Protocol: routing.HTTPS, Hostname: "a.example", ChallengeCertificates: challenges},
		"one that is late": {Protocol: routing.HTTPS, Hostname: "a.example", Certificates: []string{"late"}, ChallengeCertificates: challenges},
		"all host names":   {Protocol: routing.HTTPS, ChallengeCertificates: challenges},
		"streams of TLS":   {Protocol: routing.TLSTerminate, Hostname: "a.example", ChallengeCertificates: challenges},
	} {
		port := w.open(name, routing.TCP, listener)
		c, err := dialTLS(port, &tls.Config{ServerName: "a.example", RootCAs: ca.pool, NextProtos: []string{"acme-tls/1"}})
		if err != nil {
			t.Errorf("%s: an authority gets %v", name, err)
			continue
		}
		if protocol := c.ConnectionState().NegotiatedProtocol; protocol != "acme-tls/1" {
			t.Errorf("%s: the protocol is %q", name, protocol)
		}
		_ = c.Close()
		if c, err := dialTLS(port, &tls.Config{ServerName: "a.example", RootCAs: ca.pool, NextProtos: []string{"http/1.1"}}); err == nil {
			t.Errorf("%s: a client is served", name)
			_ = c.Close()
		}
	}
}

// TestSilentHandshake closes a connection whose client does not say what it wants.
func TestSilentHandshake(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.header = 30 * time.Millisecond })
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.TLSPassthrough})
	c := dialTCP(t, port)
	_ = c.SetReadDeadline(time.Now().Add(generous))
	if n, err := c.Read(make([]byte, 1)); n > 0 || errors.Is(err, net.ErrClosed) || err == nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	eventually(t, "forgetting the connection", func() bool { return w.sockets.connections.count() == 0 })
}

// TestBoundedHello gives up on a client that never ends its ClientHello.
func TestBoundedHello(t *testing.T) {
	w := newWorld(t, nil)
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.TLSPassthrough})
	c := dialTCP(t, port)
	_ = c.SetDeadline(time.Now().Add(generous))
	// A handshake message of 60,000 bytes, in records of one byte.
	hello := append([]byte{1, 0, 0xea, 0x60}, make([]byte, 60000)...)
	var records []byte
	for _, b := range hello {
		records = append(records, 22, 3, 1, 0, 1, b)
	}
	_, _ = c.Write(records[:longestHello+6])
	if _, err := io.ReadAll(c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	eventually(t, "forgetting the connection", func() bool { return w.sockets.connections.count() == 0 })
}

func TestCovering(t *testing.T) {
	var c choice
	for _, names := range [][]string{{"a.example"}, {"*.example"}, {"a.example", "A.example"}, {"*.b.example"}} {
		c.add(&tls.Certificate{Leaf: &x509.Certificate{DNSNames: names}})
	}
	for name, want := range map[string][]int{
		"a.example": {0, 1, 2}, "b.example": {1}, "x.b.example": {3}, "example": nil, "": nil, "x.y.b.example": nil, ".example": nil, ".": nil,
	} {
		var got []int
		for _, certificate := range c.covering(name) {
			got = append(got, slices.Index(c.all, certificate))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q is covered by %v, want %v", name, got, want)
		}
	}
}
