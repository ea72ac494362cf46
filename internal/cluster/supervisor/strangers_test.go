package supervisor

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// from is a connection from an address. It notes that it was closed.
type from struct {
	net.Conn
	address string
	closed  chan struct{}
}

func newFrom(address string) *from { return &from{address: address, closed: make(chan struct{})} }

func (f *from) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(f.address))
}
func (f *from) Close() error { close(f.closed); return nil }

// TestStrangersLimit opens connections one after the other. Four of them may be strangers
// at a time.
func TestStrangersLimit(t *testing.T) {
	for name, test := range map[string]struct {
		open, want []string
		// known are the connections that become known when they come.
		known []string
	}{
		"few":                    {open: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"}},
		"one host":               {open: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5", "10.0.0.1:6"}, want: []string{"10.0.0.1:1", "10.0.0.1:2"}},
		"others are left alone":  {open: []string{"10.0.0.2:1", "10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.3:1"}, want: []string{"10.0.0.1:1", "10.0.0.1:2"}},
		"one of each":            {open: []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1", "10.0.0.5:1"}, want: []string{"10.0.0.1:1"}},
		"known ones don't count": {open: []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5"}, known: []string{"10.0.0.1:1"}},
		"IPv6 by network":        {open: []string{"[fd00::9:1]:1", "[fd00:0:0:1::1]:1", "[fd00::1]:1", "[fd00::2]:1", "[fd00::3]:1"}, want: []string{"[fd00::9:1]:1"}},
		"mapped":                 {open: []string{"10.0.0.2:1", "[::ffff:10.0.0.1]:1", "10.0.0.1:2", "10.0.0.3:1", "10.0.0.4:1"}, want: []string{"[::ffff:10.0.0.1]:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStrangers()
			s.limit = 4
			var opened []*stranger
			var closed []string
			for _, address := range test.open {
				conn, surplus := s.add(newFrom(address))
				opened = append(opened, conn)
				if slices.Contains(test.known, address) {
					conn.known()
				}
				if surplus != nil {
					closed = append(closed, surplus.Conn.(*from).address)
					_ = surplus.Close()
				}
			}
			if !slices.Equal(closed, test.want) {
				t.Errorf("closed were %v, want %v", closed, test.want)
			}
			for _, conn := range opened {
				conn.known()
			}
			if s.count != 0 || len(s.hosts) != 0 {
				t.Errorf("got %d connections of strangers %v, want none", s.count, s.hosts)
			}
		})
	}
}

// TestStrangersSilence has a connection without any request, and one with a request.
func TestStrangersSilence(t *testing.T) {
	s := newStrangers()
	s.patience = 0
	silent := newFrom("10.0.0.1:1")
	_, _ = s.add(silent)
	<-silent.closed
	s.patience = time.Hour
	conn, _ := s.add(newFrom("10.0.0.1:2"))
	conn.known()
	if conn.silence.Stop() {
		t.Error("a known connection is to be closed yet")
	}
}

// TestStrangersBody announces a body that never comes. The handler does not read it.
func TestStrangersBody(t *testing.T) {
	s := newStrangers()
	s.idle = time.Millisecond
	server := httptest.NewUnstartedServer(s.judge(http.NotFoundHandler()))
	server.Listener = s.listener(server.Listener)
	server.Config.ConnContext = s.remember
	server.StartTLS()
	defer server.Close()
	conn, err := tls.Dial("tcp", server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	// http.Server waits for the body before it sends the answer, so the connection ends
	// without an answer.
	if answer, err := io.ReadAll(conn); len(answer) > 0 {
		t.Errorf("the answer is %q, %v", answer, err)
	}
}

// TestStrangersJudge makes each request over a connection of its own, and checks whether
// the connection is known then.
func TestStrangersJudge(t *testing.T) {
	s := newStrangers()
	after := make(chan bool, 1)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/starting":
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(r.Header.Get("Authorization"), "wrong"):
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/forbidden":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/watch":
			w.(http.Flusher).Flush()
		case r.URL.Path == "/exec":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			_ = conn.Close()
		}
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(strangerKey{}).(*stranger)
		s.judge(api).ServeHTTP(w, r)
		after <- conn.isKnown.Load() || r.URL.Path == "/exec"
	}))
	server.Listener = s.listener(server.Listener)
	server.Config.ConnContext = s.remember
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	for name, test := range map[string]struct {
		method, path, authorization string
		cert, want                  bool
	}{
		"nobody":                      {"GET", "/", "", false, false},
		"a token":                     {"GET", "/", "Bearer right", false, true},
		"a token without rights":      {"GET", "/forbidden", "Bearer right", false, true},
		"a wrong token":               {"GET", "/", "Bearer wrong", false, false},
		"an empty token":              {"GET", "/", "Bearer  ", false, false},
		"a token while it starts":     {"GET", "/starting", "Bearer wrong", false, false},
		"a watch":                     {"GET", "/watch", "bearer right", false, true},
		"exec":                        {"GET", "/exec", "Bearer right", false, true},
		"a certificate":               {"GET", "/", "", true, true},
		"a password for the API":      {"GET", "/", "Basic any", false, false},
		"a token for joining":         {"POST", "/v1-kedge/join", "Basic right", false, true},
		"a wrong token for joining":   {"POST", "/v1-kedge/join", "Basic wrong", false, false},
		"what everybody may ask":      {"GET", "/cacerts", "Bearer any", true, false},
		"a question before a request": {"OPTIONS", "/", "Bearer any", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{InsecureSkipVerify: true}
			if test.cert {
				config.Certificates = []tls.Certificate{*newCertificate(t)}
			}
			transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
			request, err := http.NewRequestWithContext(t.Context(), test.method, server.URL+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.authorization != "" {
				request.Header.Set("Authorization", test.authorization)
			}
			if response, err := transport.RoundTrip(request); err == nil {
				_ = response.Body.Close()
			} else if test.path != "/exec" {
				t.Fatal(err)
			}
			if got := <-after; got != test.want {
				t.Errorf("known: %t, want %t", got, test.want)
			}
		})
	}
}
