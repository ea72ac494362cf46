package supervisor

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// newCertificate makes a self-signed certificate for 127.0.0.1.
func newCertificate(t *testing.T) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// served is a running supervisor with a client's TLS settings for it.
type served struct {
	address string
	tls     *tls.Config
	// stop stops the supervisor and returns Run's error.
	stop func() error
}

func serve(t *testing.T, api http.Handler) *served {
	t.Helper()
	testutil.CheckLeaks(t)
	listener, err := Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	cert := newCertificate(t)
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	s := New(Config{
		Listener:    listener,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil },
		Registry:    registration.New(),
		API:         api,
		Now:         time.Now,
	})
	s.client = fake.NewClientset()
	ctx, cancel := context.WithCancel(context.Background())
	ended, isReady := make(chan error, 1), make(chan struct{})
	go func() { ended <- s.Run(ctx, func() { close(isReady) }) }()
	<-isReady
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { _ = stop() })
	return &served{listener.Addr().String(), &tls.Config{RootCAs: roots}, stop}
}

// client returns a client that speaks HTTP/2 or HTTP/1.1.
func (s *served) client(t *testing.T, http2 bool, cert *tls.Certificate) *http.Client {
	t.Helper()
	config := s.tls.Clone()
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestRequestsArriveAsSent(t *testing.T) {
	s := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			who = "a certificate"
		}
		_, _ = fmt.Fprintf(w, "%s %s from %s", r.Proto, r.RequestURI, who)
	}))
	tests := map[string]struct {
		http2 bool
		cert  *tls.Certificate
		path  string
		want  string
	}{
		"HTTP/2":                           {true, nil, "/version", "HTTP/2.0 /version from nobody"},
		"HTTP/1.1":                         {false, nil, "/version", "HTTP/1.1 /version from nobody"},
		"a certificate that nobody signed": {true, newCertificate(t), "/api", "HTTP/2.0 /api from a certificate"},
		"a path that http.ServeMux would redirect": {true, nil, "/api/v1/x/proxy//a/../b?c=d",
			"HTTP/2.0 /api/v1/x/proxy//a/../b?c=d from nobody"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			response, err := s.client(t, test.http2, test.cert).Get("https://" + s.address + test.path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != test.want {
				t.Errorf("got %q, %v; want %q", body, err, test.want)
			}
		})
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestTLSBelow12IsRefused(t *testing.T) {
	s := serve(t, http.NotFoundHandler())
	config := s.tls.Clone()
	config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if conn, err := tls.Dial("tcp", s.address, config); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
}

// TestStop: watches and upgraded connections end with the supervisor, and nothing of it
// is left. The leak check in serve looks for that.
func TestStop(t *testing.T) {
	watch := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	upgrade := func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		// Like an exec session, this waits until the peer closes and ignores any context.
		_, _ = io.Copy(io.Discard, conn)
	}
	for name, test := range map[string]struct {
		http2   bool
		handler http.HandlerFunc
	}{
		"HTTP/2 watch":   {true, watch},
		"HTTP/1.1 watch": {false, watch},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, test.handler)
			response, err := s.client(t, test.http2, nil).Get("https://" + s.address + "/")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if err := s.stop(); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadAll(response.Body); err != nil {
				t.Errorf("the watch was cut off, not closed: %v", err)
			}
		})
	}
	t.Run("upgraded", func(t *testing.T) {
		s := serve(t, http.HandlerFunc(upgrade))
		conn, err := tls.Dial("tcp", s.address, s.tls)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "POST /exec HTTP/1.1\r\nHost: kedge\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, "101") {
			t.Fatalf("got %q, %v", line, err)
		}
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("handshake under way", func(t *testing.T) {
		s := serve(t, http.NotFoundHandler())
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestListenerThatFailsEndsTheComponent(t *testing.T) {
	testutil.CheckLeaks(t)
	listener, err := Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Registry: registration.New(), Listener: listener, API: http.NotFoundHandler(),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }})
	s.client = fake.NewClientset()
	err = s.Run(t.Context(), func() { _ = listener.Close() })
	if err == nil || !strings.Contains(err.Error(), "serve on 127.0.0.1") {
		t.Errorf("got %v", err)
	}
}

func TestErrorLog(t *testing.T) {
	var out strings.Builder
	logger := logrus.New()
	logger.SetOutput(&out)
	logger.SetLevel(logrus.DebugLevel)
	w := &errorLog{logrus.NewEntry(logger)}
	for _, message := range []string{"http: TLS handshake error from 192.0.2.1:1: EOF\n", "http: panic serving 192.0.2.1:1: boom\n", "something else\n"} {
		if n, err := io.WriteString(w, message); n != len(message) || err != nil {
			t.Errorf("write: got %d, %v, want %d", n, err, len(message))
		}
	}
	if got := out.String(); strings.Contains(got, "handshake") || !strings.Contains(got, "level=error msg=\"http: panic") ||
		!strings.Contains(got, "level=debug msg=\"something else\"") {
		t.Errorf("got log %s, want the panic as an error, the other message at debug, and no handshake error", got)
	}
}
