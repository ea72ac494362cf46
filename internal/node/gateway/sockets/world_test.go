package sockets

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
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
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// generous is how long a test waits for what must happen.
const generous = 20 * time.Second

// world has Sockets that run until the test ends.
type world struct {
	t       *testing.T
	sockets *Sockets
	state   routing.State
	// handler answers requests.
	handler func(w http.ResponseWriter, r *http.Request)
	log     *lines
	stop    func()
}

// lines are what was logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Levels() []logrus.Level { return logrus.AllLevels }

func (l *lines) Fire(entry *logrus.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, entry.Level.String()+": "+entry.Message)
	return nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprint(l.all)
}

func newWorld(t *testing.T, change func(*Sockets)) *world {
	t.Helper()
	testutil.CheckLeaks(t)
	w := &world{t: t, log: &lines{}, state: routing.State{
		Sockets: map[string]*routing.Socket{}, Routes: map[string]*routing.Route{},
		Backends: map[string]*routing.Backend{}, Certificates: map[string]*routing.Certificate{},
	}}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.DebugLevel)
	logger.AddHook(w.log)
	w.handler = func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s from %s", r.Proto, r.RemoteAddr)
	}
	w.sockets = New(Config{
		Serve: func(answer http.ResponseWriter, r *http.Request, socket string) {
			answer.Header().Set("Socket", socket)
			w.handler(answer, r)
		},
		Log: logrus.NewEntry(logger), MaxConnections: 500, MaxPerClient: 500, Patience: 100 * time.Millisecond,
	})
	w.sockets.patience.grace = 20 * time.Millisecond
	if change != nil {
		change(w.sockets)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.sockets.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(w.stop)
	return w
}

// apply gives the sockets a copy of the state.
func (w *world) apply() {
	state := w.state
	state.Sockets, state.Routes = clone(w.state.Sockets), clone(w.state.Routes)
	state.Backends, state.Certificates = clone(w.state.Backends), clone(w.state.Certificates)
	w.sockets.Set(&state)
}

func clone[T any](values map[string]*T) map[string]*T {
	copied := map[string]*T{}
	for name, value := range values {
		again := *value
		copied[name] = &again
	}
	return copied
}

// open adds a socket at a free port and returns the port.
func (w *world) open(name string, transport routing.Transport, listeners ...routing.Listener) uint16 {
	w.t.Helper()
	port := freePort(w.t)
	w.state.Sockets[name] = &routing.Socket{Transport: transport, Port: port, PublicPort: 443, Listeners: listeners}
	w.apply()
	return port
}

// freePort returns a port that nothing listens on, with TCP and UDP.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", ":0")
		must(t, err)
		port := listener.Addr().(*net.TCPAddr).Port
		packets, err := net.ListenPacket("udp", ":"+strconv.Itoa(port))
		_ = listener.Close()
		if err == nil {
			_ = packets.Close()
			return uint16(port)
		}
	}
}

func local(port uint16) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(generous); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// authority signs certificates.
type authority struct {
	t           *testing.T
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         string
	pool        *x509.CertPool
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	a := &authority{t: t, key: key, pool: x509.NewCertPool()}
	a.certificate, err = x509.ParseCertificate(der)
	must(t, err)
	a.pool.AddCert(a.certificate)
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *authority) sign(key crypto.Signer, names ...string) *routing.Certificate {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	must(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, DNSNames: names, Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	must(a.t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	return &routing.Certificate{
		Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
	}
}

// leaf returns a certificate with an ECDSA key.
func (a *authority) leaf(names ...string) *routing.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	return a.sign(key, names...)
}

func (a *authority) rsaLeaf(names ...string) *routing.Certificate {
	a.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(a.t, err)
	return a.sign(key, names...)
}

func (a *authority) client() tls.Certificate {
	a.t.Helper()
	leaf := a.leaf()
	pair, err := tls.X509KeyPair([]byte(leaf.Chain), []byte(leaf.Key))
	must(a.t, err)
	return pair
}

// dialTLS connects to a port and shakes hands.
func dialTLS(port uint16, config *tls.Config) (*tls.Conn, error) {
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: generous}, Config: config}
	c, err := dialer.Dial("tcp", local(port))
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil
}

// get asks over a connection, and returns the answer and its body.
func get(c net.Conn, request string) (*http.Response, string, error) {
	_ = c.SetDeadline(time.Now().Add(generous))
	if _, err := io.WriteString(c, request); err != nil {
		return nil, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response, string(body), err
}

const plainGet = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"

// echo is a backend that begins with its name and a newline, and then says what it hears. It
// closes its side when the client has closed its own.
func echo(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	serve(t, listener, name)
	return netip.MustParseAddrPort(listener.Addr().String())
}

// serve runs the backend of echo on a listener until the test ends.
func serve(t *testing.T, listener net.Listener, name string) {
	var working sync.WaitGroup
	working.Go(func() {
		for {
			c, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			working.Go(func() {
				defer c.Close()
				if _, err := io.WriteString(c, name+"\n"); err != nil {
					return
				}
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		working.Wait()
	})
}

// hear returns what a stream says after it was asked something, or an error.
func hear(c interface {
	net.Conn
	CloseWrite() error
}, asked string) (string, error) {
	_ = c.SetDeadline(time.Now().Add(generous))
	if _, err := io.WriteString(c, asked); err != nil {
		return "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", err
	}
	var heard bytes.Buffer
	_, err := io.Copy(&heard, c)
	return heard.String(), err
}

func split(backends ...string) *routing.Split {
	s := &routing.Split{}
	for _, backend := range backends {
		s.Targets = append(s.Targets, routing.Target{Backend: backend, Weight: 1})
	}
	return s
}

func dialTCP(t *testing.T, port uint16) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", local(port), generous)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

type addrPort = netip.AddrPort

func addrPortOf(listener net.Listener) addrPort {
	return netip.MustParseAddrPort(listener.Addr().String())
}
