package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
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
