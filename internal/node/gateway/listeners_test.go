package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/requests"
	listening "github.com/kedge-dev/kedge/internal/node/gateway/sockets"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// both are the two parts that serve, as on a node, with one port for HTTPS and HTTP/3. Each
// listener has an app, which answers with the name of the listener.
type both struct {
	testing.TB
	state *routing.State
	port  uint16
	apply func()
}

// The sockets of both.
const (
	overTCP  = "tcp"
	overQUIC = "quic"
)

func newBoth(t testing.TB) *both {
	t.Helper()
	port := freePort(t)
	b := &both{TB: t, port: port, state: &routing.State{
		Sockets: map[string]*routing.Socket{
			overTCP:  {Transport: routing.TCP, Port: port, PublicPort: 443},
			overQUIC: {Transport: routing.UDP, Port: port, PublicPort: 443, HTTP3: true},
		},
		Routes: map[string]*routing.Route{}, Backends: map[string]*routing.Backend{}, Certificates: map[string]*routing.Certificate{},
	}}
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	q := requests.New(requests.Config{})
	s := listening.New(listening.Config{Serve: q.Serve, Log: logrus.NewEntry(quiet), Patience: time.Second, MaxConnections: 200, MaxPerClient: 200})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
		q.Close()
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	b.apply = func() {
		state := *b.state
		state.Sockets = map[string]*routing.Socket{}
		for name, socket := range b.state.Sockets {
			copied := *socket
			copied.Listeners = slices.Clone(socket.Listeners)
			state.Sockets[name] = &copied
		}
		q.Set(&state)
		s.Set(&state)
		for deadline := time.Now().Add(20 * time.Second); len(s.Listening()) != 2; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the sockets do not open")
			}
		}
	}
	return b
}

func freePort(t testing.TB) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

// add adds a listener with an app of its own. Its certificate has its name alone, so that a
// client sees which listener has answered the handshake.
func (b *both) add(l routing.Listener) {
	b.Helper()
	l.Name = string(l.Protocol) + " " + l.Hostname
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, l.Name) }))
	b.Cleanup(app.Close)
	name := strings.ReplaceAll(l.Name, " ", "/")
	b.state.Backends[name] = &routing.Backend{Name: name, Endpoints: []netip.AddrPort{netip.MustParseAddrPort(app.Listener.Addr().String())}}
	b.state.Certificates[name] = selfSigned(b, l.Name)
	split := routing.Split{Targets: []routing.Target{{Backend: name, Weight: 1}}}
	route := &routing.Route{Name: name, Rules: []routing.Rule{{Split: split}}}
	l.Routes, l.Certificates = []string{name}, []string{name}
	if l.Protocol == routing.TLSPassthrough || l.Protocol == routing.TLSTerminate {
		route.Rules, route.Stream = nil, &split
		b.state.Sockets[overQUIC].Reserved = append(b.state.Sockets[overQUIC].Reserved, l.Hostname)
	} else {
		b.state.Sockets[overQUIC].Listeners = append(b.state.Sockets[overQUIC].Listeners, l)
	}
	b.state.Routes[name] = route
	b.state.Sockets[overTCP].Listeners = append(b.state.Sockets[overTCP].Listeners, l)
}

// selfSigned returns a certificate with a common name.
func selfSigned(t testing.TB, name string) *routing.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &routing.Certificate{
		Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
	}
}

func pairOf(t testing.TB, c *routing.Certificate) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(c.Chain), []byte(c.Key))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client is a connection to the gateway.
type client struct {
	http.RoundTripper
	// listener is the one that has answered the handshake, by its certificate.
	listener string
	close    func()
}

// versions are the ways to speak HTTP with TLS.
var versions = []string{"HTTP/1.1", "HTTP/2", "HTTP/3"}

// connect shakes hands with a server name. The client shows a certificate if it has one.
func (b *both) connect(version, serverName string, certificates ...tls.Certificate) (*client, error) {
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Second)
	defer cancel()
	config := &tls.Config{ServerName: serverName, InsecureSkipVerify: true, Certificates: certificates}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port)))
	if version == "HTTP/3" {
		config.NextProtos = []string{"h3"}
		conn, err := quic.DialAddr(ctx, address, config, nil)
		if err != nil {
			return nil, err
		}
		transport := &http3.Transport{}
		return &client{transport.NewClientConn(conn), shownBy(conn.ConnectionState().TLS), func() { _ = conn.CloseWithError(0, "") }}, nil
	}
	config.NextProtos = []string{map[string]string{"HTTP/1.1": "http/1.1", "HTTP/2": "h2"}[version]}
	dialer := tls.Dialer{Config: config}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(version == "HTTP/1.1")
	protocols.SetHTTP2(version == "HTTP/2")
	conns := make(chan net.Conn, 1)
	conns <- c
	transport := &http.Transport{Protocols: &protocols, DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-conns:
			return c, nil
		default:
			return nil, errors.New("the gateway has closed the only connection")
		}
	}}
	return &client{transport, shownBy(c.(*tls.Conn).ConnectionState()), func() {
		transport.CloseIdleConnections()
		_ = c.Close()
	}}, nil
}

func shownBy(state tls.ConnectionState) string { return state.PeerCertificates[0].Subject.CommonName }

// get asks for a host, and returns the status and who has answered.
func (c *client) get(t testing.TB, host string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	// All hosts are asked for on the one connection that there is.
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://gateway.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	answer, err := c.RoundTrip(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// TestOneListener asks on connections of each listener for the hosts of each other one, with all
// versions of HTTP. A host is served on connections of its own listener, and nowhere else.
func TestOneListener(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	for _, l := range []routing.Listener{
		{Protocol: routing.HTTPS},
		{Protocol: routing.HTTPS, Hostname: "*.example.com"},
		{Protocol: routing.HTTPS, Hostname: "exact.example.com"},
		{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain},
		{Protocol: routing.HTTPS, Hostname: "lax.example.com", ClientAuthorities: known.Chain, AllowInsecureFallback: true},
		{Protocol: routing.TLSPassthrough, Hostname: "pass.example.com"},
		{Protocol: routing.TLSTerminate, Hostname: "end.example.com"},
		{Protocol: routing.TLSTerminate, Hostname: "*.tls.example.com"},
		{Protocol: routing.HTTPS, Hostname: "web.tls.example.com"},
	} {
		b.add(l)
	}
	b.apply()
	// The hosts that clients ask for, and whose they are.
	owners := map[string]string{
		"anything.test": "https ", "a.example.com": "https *.example.com", "b.a.example.com": "https *.example.com", "exact.example.com": "https exact.example.com",
		"secure.example.com": "https secure.example.com", "lax.example.com": "https lax.example.com", "pass.example.com": "", "end.example.com": "",
		"a.tls.example.com": "", "web.tls.example.com": "https web.tls.example.com",
	}
	for _, version := range versions {
		for serverName, owner := range owners {
			if owner == "" {
				b.wantNoHTTP(version, serverName)
				continue
			}
			for host, other := range owners {
				c, err := b.connect(version, serverName, pairOf(t, known))
				if err != nil {
					t.Fatalf("%s to %s: %v", version, serverName, err)
				}
				if c.listener != owner {
					t.Errorf("%s to %s: the listener %q answers, want %q", version, serverName, c.listener, owner)
				}
				status, text := c.get(t, host)
				if same := other == owner; same != (status == http.StatusOK && text == owner) || !same && status != http.StatusMisdirectedRequest {
					t.Errorf("%s: on a connection to %s, %s gets %d %q", version, serverName, host, status, text)
				}
				c.close()
			}
		}
	}
}

// wantNoHTTP fails the test if a server name of a listener of TLS gets HTTP.
func (b *both) wantNoHTTP(version, serverName string) {
	b.Helper()
	c, err := b.connect(version, serverName)
	if err != nil {
		return
	}
	defer c.close()
	// Where TLS ends without HTTP, the app hears what the client says.
	if status, text := c.get(b, serverName); version == "HTTP/3" || status == http.StatusOK && strings.HasPrefix(text, "https") {
		b.Errorf("%s to %s gets %d %q", version, serverName, status, text)
	}
}

// TestNamesInDisguise shakes hands with names that are no DNS names, or that somebody has written in
// another way, and asks for the host whose clients need a certificate.
func TestNamesInDisguise(t *testing.T) {
	testutil.CheckLeaks(t)
	b := newBoth(t)
	known := selfSigned(t, "known")
	b.add(routing.Listener{Protocol: routing.HTTPS})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "*.secure.example.com", ClientAuthorities: known.Chain})
	b.apply()
	long := strings.Repeat("a.", 120)
	for _, version := range versions {
		for _, serverName := range []string{
			"secure.example.com:443", ".secure.example.com", "secure..example.com", "SECURE.example.com", "Secure.Example.Com:1", "*.secure.example.com",
			long + "secure.example.com", "secure.example.com/", "secure.example.com\x00", "a.secure.example.com:443", "..secure.example.com",
			"other.test", "",
		} {
			for _, host := range []string{"secure.example.com", "secure.example.com:443", "SECURE.example.com", "secure.example.com.", "a.secure.example.com"} {
				c, err := b.connect(version, serverName)
				if err != nil {
					continue // refused
				}
				if status, text := c.get(t, host); status == http.StatusOK || strings.Contains(text, "secure") {
					t.Errorf("%s to %q: without a certificate %s gets %d %q", version, serverName, host, status, text)
				}
				c.close()
			}
		}
		// Honest clients are served, however they write the name.
		for _, serverName := range []string{"secure.example.com", "SECURE.example.com"} {
			c, err := b.connect(version, serverName, pairOf(t, known))
			if err != nil {
				t.Errorf("%s to %s: %v", version, serverName, err)
				continue
			}
			for _, host := range []string{"secure.example.com", "Secure.example.com:443", "secure.example.com."} {
				if status, text := c.get(t, host); status != http.StatusOK {
					t.Errorf("%s to %s: with a certificate %s gets %d %q", version, serverName, host, status, text)
				}
			}
			c.close()
		}
	}
}

// TestChangedListeners changes the listeners while connections are open. A request is served only if
// its connection could be made now, and would lead to the same listener. Otherwise clients of
// HTTP/1.1 and HTTP/2 are asked to connect again.
func TestChangedListeners(t *testing.T) {
	testutil.CheckLeaks(t)
	known, other := selfSigned(t, "known"), selfSigned(t, "other")
	const host = "a.example.com"
	wide := routing.Listener{Protocol: routing.HTTPS, Hostname: "*.example.com"}
	strict, lax := wide, wide
	strict.ClientAuthorities, lax.ClientAuthorities, lax.AllowInsecureFallback = known.Chain, known.Chain, true
	exact, exactStrict, exactTLS, changed := wide, strict, wide, strict
	exact.Hostname, exactStrict.Hostname, exactTLS.Hostname, exactTLS.Protocol = host, host, host, routing.TLSTerminate
	changed.ClientAuthorities = other.Chain
	for _, test := range []struct {
		what          string
		before, after []routing.Listener
		want          int
	}{
		{"nothing changes", []routing.Listener{wide}, []routing.Listener{wide}, 200},
		{"the listener wants certificates", []routing.Listener{wide}, []routing.Listener{strict}, 421},
		{"the listener wants them without fallback", []routing.Listener{lax}, []routing.Listener{strict}, 421},
		{"the listener falls back", []routing.Listener{strict}, []routing.Listener{lax}, 200},
		{"the listener wants none any more", []routing.Listener{strict}, []routing.Listener{wide}, 200},
		{"the listener wants others", []routing.Listener{strict}, []routing.Listener{changed}, 421},
		{"a listener of its own", []routing.Listener{wide}, []routing.Listener{wide, exact}, 200},
		{"one of its own that wants certificates", []routing.Listener{wide}, []routing.Listener{wide, exactStrict}, 421},
		{"one of its own for TLS", []routing.Listener{wide}, []routing.Listener{wide, exactTLS}, 421},
		{"its own is gone", []routing.Listener{wide, exactStrict}, []routing.Listener{wide}, 200},
		{"its own is gone, and the rest wants certificates of others", []routing.Listener{wide, exactStrict}, []routing.Listener{changed}, 421},
		{"no listener is left", []routing.Listener{wide}, []routing.Listener{{Protocol: routing.HTTPS, Hostname: "other.test"}}, 404},
	} {
		t.Run(test.what, func(t *testing.T) {
			b := newBoth(t)
			set := func(all []routing.Listener) {
				for _, socket := range b.state.Sockets {
					socket.Listeners, socket.Reserved = nil, nil
				}
				for _, l := range all {
					b.add(l)
				}
				b.apply()
			}
			set(test.before)
			var clients []*client
			for _, version := range versions {
				c, err := b.connect(version, host, pairOf(t, known))
				if err != nil {
					t.Fatalf("%s: %v", version, err)
				}
				defer c.close()
				if status, text := c.get(t, host); status != http.StatusOK {
					t.Fatalf("%s before the change: %d %q", version, status, text)
				}
				clients = append(clients, c)
			}
			set(test.after)
			for i, c := range clients {
				if status, text := c.get(t, host); status != test.want {
					t.Errorf("%s after the change: %d %q, want %d", versions[i], status, text, test.want)
				}
			}
		})
	}
}

// FuzzListener shakes hands with any server name, without a certificate of a client, and asks for any
// host. The app that answers is that of the listener that has answered the handshake.
func FuzzListener(f *testing.F) {
	b := newBoth(f)
	known := selfSigned(f, "known")
	b.add(routing.Listener{Protocol: routing.HTTPS})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "*.example.com"})
	b.add(routing.Listener{Protocol: routing.HTTPS, Hostname: "secure.example.com", ClientAuthorities: known.Chain})
	b.add(routing.Listener{Protocol: routing.TLSPassthrough, Hostname: "pass.example.com"})
	b.apply()
	for _, name := range []string{"secure.example.com", "secure.example.com:443", ".secure.example.com", "SECURE.example.com.", "a.example.com", "pass.example.com", "", "other.test"} {
		for _, host := range []string{"secure.example.com", "secure.example.com.", "a.example.com:443", "pass.example.com", "x", "[::1]"} {
			f.Add(name, host)
		}
	}
	f.Fuzz(func(t *testing.T, serverName, host string) {
		if strings.ContainsAny(host, "\r\n") {
			return // that would be another header
		}
		c, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(b.port))), &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
		if err != nil {
			return // the name is refused
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
			return
		}
		text, err := io.ReadAll(c)
		if err != nil || len(text) == 0 {
			return // the listener wants a certificate
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		if err != nil {
			t.Fatalf("%q for %q gets %q: %v", serverName, host, text, err)
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode == http.StatusOK && string(body) != shownBy(c.ConnectionState()) {
			t.Errorf("on a connection of %q for %q, the app of %q answers to %q", shownBy(c.ConnectionState()), serverName, body, host)
		}
		if strings.Contains(string(body), "secure") {
			t.Errorf("%q for %q gets %q without a certificate", serverName, host, body)
		}
	})
}
