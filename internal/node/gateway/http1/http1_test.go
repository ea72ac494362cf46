package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// script is an endpoint that answers each request with the next text of a connection. Behind the last text
// it closes the connection.
type script struct {
	testing.TB
	address string
	// answer returns the text for a request, by its method, and by the number of the connection and of the
	// request on it, which begin with zero. It returns false to close the connection.
	answer func(method string, connection, request int) (text string, goesOn bool)

	mu          sync.Mutex
	conns       []net.Conn
	connections int
	// asked are the methods of all requests.
	asked []string
}

func newScript(t testing.TB, answer func(method string, connection, request int) (string, bool)) *script {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{TB: t, address: listener.Addr().String(), answer: answer}
	var working sync.WaitGroup
	working.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			number := s.connections
			s.connections++
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			working.Go(func() { s.serve(c, number) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		s.each(func(c net.Conn) { c.Close() })
		working.Wait()
	})
	return s
}

// each calls the function with all connections.
func (s *script) each(do func(net.Conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		do(c)
	}
}

func (s *script) serve(c net.Conn, connection int) {
	defer c.Close()
	requests := bufio.NewReader(c)
	for i := 0; ; i++ {
		r, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		s.mu.Lock()
		s.asked = append(s.asked, r.Method)
		s.mu.Unlock()
		text, goesOn := s.answer(r.Method, connection, i)
		if _, err := io.WriteString(c, text); err != nil || !goesOn {
			return
		}
	}
}

// used returns how many connections there were.
func (s *script) used() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

// whole returns an answer that has a body with a length.
func whole(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// newClient returns a client that is closed when the test ends.
func newClient(t testing.TB, change func(*Config)) *Client {
	t.Helper()
	cfg := Config{
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "tcp", address)
		},
		MaxIdle: 10, IdleTimeout: time.Minute, MaxHeader: 4096,
	}
	if change != nil {
		change(&cfg)
	}
	c := New(cfg)
	t.Cleanup(c.Close)
	return c
}

func noHint(int, textproto.MIMEHeader) error { return nil }

// ask sends a request and returns the body of the answer.
func ask(t testing.TB, c *Client, method, address string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequest(method, "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(ctx, r, noHint)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// TestConnections is about which connections serve a second request.
func TestConnections(t *testing.T) {
	for name, test := range map[string]struct {
		// first is the answer to the first request.
		first, method string
		// connections is how many there are after the second request.
		connections int
	}{
		"with a length":                {first: whole("first"), connections: 1},
		"chunked":                      {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\nX-After: all\r\n\r\n", connections: 1},
		"to HEAD":                      {first: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", method: http.MethodHead, connections: 1},
		"without a body":               {first: "HTTP/1.1 204 No Content\r\n\r\n", connections: 1},
		"not modified, with a length":  {first: "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", connections: 1},
		"after hints":                  {first: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + whole("first"), connections: 1},
		"of HTTP/1.0 that stays":       {first: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nfirst", connections: 1},
		"that closes":                  {first: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nfirst", connections: 2},
		"of HTTP/1.0":                  {first: "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nfirst", connections: 2},
		"with more than its length":    {first: whole("first") + "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", connections: 2},
		"to HEAD with a body":          {first: whole("first"), method: http.MethodHead, connections: 2},
		"with a body that cannot be":   {first: "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", connections: 2},
		"with more behind the chunks":  {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", connections: 2},
		"that is another protocol":     {first: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", connections: 2},
		"with a length and chunks":     {first: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n", connections: 1},
		"with two different lengths":   {first: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nfirst", connections: 2},
		"with a transfer code unknown": {first: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nfirst", connections: 2},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			s := newScript(t, func(_ string, connection, request int) (string, bool) {
				if connection+request == 0 {
					return test.first, true
				}
				return whole("second"), true
			})
			c := newClient(t, nil)
			method := test.method
			if method == "" {
				method = http.MethodGet
			}
			_, _ = ask(t, c, method, s.address)
			if got, err := ask(t, c, http.MethodGet, s.address); got != "second" {
				t.Errorf("the second request is answered with %q, %v", got, err)
			}
			if got := s.used(); got != test.connections {
				t.Errorf("there were %d connections, want %d", got, test.connections)
			}
		})
	}
}

// TestUnread does not read an answer to its end. The connection cannot be used again.
func TestUnread(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newScript(t, func(string, int, int) (string, bool) { return whole(strings.Repeat("x", 100_000)), true })
	c := newClient(t, nil)
	for range 2 {
		r, _ := http.NewRequest(http.MethodGet, "http://"+s.address+"/", nil)
		answer, err := c.Do(t.Context(), r, noHint)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := answer.Body.Read(make([]byte, 10)); n == 0 || err != nil {
			t.Errorf("read %d bytes: %v", n, err)
		}
		_ = answer.Body.Close()
		_ = answer.Body.Close() // does no harm
	}
	if got := s.used(); got != 2 {
		t.Errorf("there were %d connections, want 2", got)
	}
}

// TestIdle changes a connection while it has no request.
func TestIdle(t *testing.T) {
	for name, change := range map[string]func(net.Conn){
		"closed":     func(c net.Conn) { c.Close() },
		"unasked":    func(c net.Conn) { _, _ = io.WriteString(c, whole("evil")) },
		"half close": func(c net.Conn) { _ = c.(*net.TCPConn).CloseWrite() },
	} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			s := newScript(t, func(_ string, connection, _ int) (string, bool) {
				return whole(fmt.Sprint("connection ", connection)), true
			})
			c := newClient(t, nil)
			if got, err := ask(t, c, http.MethodGet, s.address); got != "connection 0" {
				t.Fatal(got, err)
			}
			kept := c.take(s.address)
			c.keep(kept)
			s.each(change)
			for deadline := time.Now().Add(patience); kept.quiet(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the connection seems to be as it was")
				}
			}
			// This request must not be sent twice.
			if got, err := ask(t, c, http.MethodPost, s.address); got != "connection 1" {
				t.Error(got, err)
			}
		})
	}
}

// TestRepeat has endpoints that close a used connection when the next request comes.
func TestRepeat(t *testing.T) {
	for name, test := range map[string]struct {
		method, text string
		want         bool
	}{
		"GET":                      {http.MethodGet, "", true},
		"HEAD":                     {http.MethodHead, "", true},
		"DELETE":                   {http.MethodDelete, "", false},
		"POST":                     {http.MethodPost, "", false},
		"GET after a part of it":   {http.MethodGet, "HTTP/1.1 200", false},
		"GET after the header":     {http.MethodGet, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsec", false},
		"GET with a faulty answer": {http.MethodGet, "nothing\r\n\r\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			s := newScript(t, func(_ string, connection, request int) (string, bool) {
				if connection == 0 && request == 1 {
					return test.text, false
				}
				return whole("fine"), true
			})
			c := newClient(t, nil)
			if got, err := ask(t, c, http.MethodGet, s.address); got != "fine" {
				t.Fatal(got, err)
			}
			if _, err := ask(t, c, test.method, s.address); (err == nil) != test.want {
				t.Errorf("the second request has the error %v", err)
			}
			asked := 2
			if test.want {
				asked++
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.asked) != asked {
				t.Errorf("the endpoint was asked %v", s.asked)
			}
		})
	}
}

// TestFirst has an endpoint that closes each new connection. The request is not sent again: it would be for
// ever.
func TestFirst(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newScript(t, func(string, int, int) (string, bool) { return "", false })
	if _, err := ask(t, newClient(t, nil), http.MethodGet, s.address); err == nil || s.used() != 1 {
		t.Errorf("%d connections, %v", s.used(), err)
	}
}

// TestHints passes informational answers on.
func TestHints(t *testing.T) {
	testutil.CheckLeaks(t)
	s := newScript(t, func(string, int, int) (string, bool) {
		return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + whole("end"), true
	})
	c := newClient(t, nil)
	r, _ := http.NewRequest(http.MethodGet, "http://"+s.address+"/", nil)
	var got []string
	answer, err := c.Do(t.Context(), r, func(code int, h textproto.MIMEHeader) error {
		got = append(got, fmt.Sprint(code, h.Get("Link")))
		return nil
	})
	if err != nil || fmt.Sprint(got) != "[103</a> 102]" {
		t.Fatal(got, err)
	}
	_ = answer.Body.Close()
	failure := errors.New("no")
	if _, err := c.Do(t.Context(), r, func(int, textproto.MIMEHeader) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

// TestLongHeader bounds the headers of all answers to a request together.
func TestLongHeader(t *testing.T) {
	for name, text := range map[string]string{
		"one":   "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 5000) + "\r\n\r\n",
		"hints": strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 500)+"\r\n\r\n", 10) + whole("end"),
	} {
		s := newScript(t, func(string, int, int) (string, bool) { return text, true })
		if _, err := ask(t, newClient(t, nil), http.MethodGet, s.address); !errors.Is(err, errHeader) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A body is not bounded.
	s := newScript(t, func(string, int, int) (string, bool) { return whole(strings.Repeat("x", 100_000)), true })
	if got, err := ask(t, newClient(t, nil), http.MethodGet, s.address); len(got) != 100_000 {
		t.Errorf("got %d bytes: %v", len(got), err)
	}
}

// TestEnd ends the context while the endpoint is silent.
func TestEnd(t *testing.T) {
	for name, text := range map[string]string{"before the answer": "", "in the body": "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfir"} {
		t.Run(name, func(t *testing.T) {
			testutil.CheckLeaks(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := make(chan struct{})
			s := newScript(t, func(string, int, int) (string, bool) {
				close(asked)
				return text, true
			})
			if text == "" {
				go func() { // the answer would end the wait
					<-asked
					cancel()
				}()
			}
			r, _ := http.NewRequest(http.MethodGet, "http://"+s.address+"/", nil)
			answer, err := newClient(t, nil).Do(ctx, r, noHint)
			if text == "" {
				if err == nil || ctx.Err() == nil {
					t.Errorf("got an answer")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			cancel()
			if got, err := io.ReadAll(answer.Body); err == nil {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestBounds is about how many connections stay, and how long.
func TestBounds(t *testing.T) {
	testutil.CheckLeaks(t)
	var together sync.WaitGroup
	together.Add(3)
	s := newScript(t, func(string, int, int) (string, bool) {
		together.Done()
		together.Wait()
		return whole("fine"), true
	})
	c := newClient(t, func(cfg *Config) { cfg.MaxIdle, cfg.IdleTimeout = 2, 50*time.Millisecond })
	var asking sync.WaitGroup
	for range 3 {
		asking.Go(func() {
			if got, err := ask(t, c, http.MethodGet, s.address); got != "fine" {
				t.Error(got, err)
			}
		})
	}
	asking.Wait()
	idle := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.idle[s.address])
	}
	if got := idle(); got > 2 {
		t.Errorf("%d connections have no request", got)
	}
	for deadline := time.Now().Add(patience); idle() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the connections stay")
		}
	}
	if c.expiry != nil && len(c.idle) == 0 {
		t.Error("a timer waits for nothing")
	}
}

// TestClosed closes a client during a request. The connection does not stay.
func TestClosed(t *testing.T) {
	testutil.CheckLeaks(t)
	c := newClient(t, nil)
	s := newScript(t, func(string, int, int) (string, bool) {
		c.Close()
		return whole("fine"), true
	})
	if got, err := ask(t, c, http.MethodGet, s.address); got != "fine" {
		t.Error(got, err)
	}
	if kept := c.take(s.address); kept != nil {
		t.Error("the connection stays")
	}
}

// TestTLS uses a connection with TLS twice.
func TestTLS(t *testing.T) {
	testutil.CheckLeaks(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }))
	defer server.Close()
	c := newClient(t, func(cfg *Config) {
		cfg.Dial = func(_ context.Context, address string) (net.Conn, error) {
			return tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		}
	})
	address := server.Listener.Addr().String()
	first, err := ask(t, c, http.MethodGet, address)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := ask(t, c, http.MethodGet, address); second != first {
		t.Errorf("%s is not %s: %v", second, first, err)
	}
	server.CloseClientConnections()
	if _, err := ask(t, c, http.MethodPost, address); err != nil {
		t.Error(err)
	}
}

// TestRefused has requests that are not sent.
func TestRefused(t *testing.T) {
	c := newClient(t, func(cfg *Config) {
		cfg.Dial = func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed }
	})
	if _, err := ask(t, c, http.MethodGet, "127.0.0.1:1"); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the error of Dial becomes %v", err)
	}
	for want, change := range map[error]func(*http.Request){
		errHasBody:    func(r *http.Request) { r.Body = io.NopCloser(bytes.NewReader(nil)) },
		errBadRequest: func(r *http.Request) { r.Header["X"] = []string{"a\r\nY: b"} },
	} {
		r, _ := http.NewRequest(http.MethodGet, "http://127.0.0.1:1/", nil)
		change(r)
		if _, err := c.Do(t.Context(), r, noHint); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

// FuzzAnswer answers a request with any bytes. Whatever they are, the answer to the next request is its own.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		whole("first"), whole("first") + whole("evil"), "", "HTTP/1.1 204 No Content\r\n\r\nx", "HTTP/1.0 200 OK\r\n\r\nfirst",
		"HTTP/1.1 100 Continue\r\n\r\n" + whole("first"), "HTTP/1.1 101 Switching Protocols\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n" + whole("evil"),
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 3000 {
			return
		}
		s := newScript(t, func(method string, _, _ int) (string, bool) {
			if method == http.MethodPut {
				return text, true
			}
			return whole("second"), true
		})
		c := newClient(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := http.NewRequest(http.MethodPut, "http://"+s.address+"/", nil)
		// All bytes are there soon. Without a deadline, the test would wait for the end of an endless answer.
		time.AfterFunc(20*time.Millisecond, cancel)
		if answer, err := c.Do(ctx, r, noHint); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		if got, err := ask(t, c, http.MethodPost, s.address); got != "second" {
			t.Errorf("after %q, the next request is answered with %q, %v", text, got, err)
		}
	})
}
