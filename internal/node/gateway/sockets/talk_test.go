package sockets

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/requests"
)

// TestLateHeader tells a client of HTTP/1 that began a request why the connection ends, with and
// without TLS. A client that said nothing gets nothing.
func TestLateHeader(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.header, s.patience.idle = 2*time.Second, 2*time.Second })
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example")
	plain := w.open("plain", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	secure := w.open("secure", routing.TCP, routing.Listener{Protocol: routing.HTTPS, Certificates: []string{"c"}})
	overTLS := func(protocols ...string) (net.Conn, error) {
		return dialTLS(secure, &tls.Config{ServerName: "a.example", RootCAs: ca.pool, NextProtos: protocols})
	}
	var working sync.WaitGroup
	const begun = "GET / HTTP/1.1\r\nHost: a.example\r\n"
	for name, connect := range map[string]func() (net.Conn, error){
		"plain":               func() (net.Conn, error) { return net.DialTimeout("tcp", local(plain), generous) },
		"TLS":                 func() (net.Conn, error) { return overTLS() },
		"TLS with a protocol": func() (net.Conn, error) { return overTLS("http/1.1") },
	} {
		for what, test := range map[string]struct {
			// said is what the client says, in parts: it waits for an answer after each but the last.
			said []string
			late bool
		}{
			"nothing":                     {[]string{""}, false},
			"a letter":                    {[]string{"G"}, true},
			"a part":                      {[]string{begun}, true},
			"a large part":                {[]string{begun + "X-A: " + strings.Repeat("a", 5000)}, true},
			"nothing more":                {[]string{plainGet, ""}, false},
			"a part of a second request":  {[]string{plainGet, begun}, true},
			"a letter of a third request": {[]string{plainGet, plainGet, "G"}, true},
		} {
			working.Go(func() {
				if err := sayAndHear(connect, test.said, test.late); err != nil {
					t.Errorf("%s, %s: %v", name, what, err)
				}
			})
		}
	}
	working.Wait()
}

// sayAndHear says parts on a connection, and returns an error unless each but the last is answered with
// 200, and the last one with 408 or, if it is not late, with nothing.
func sayAndHear(connect func() (net.Conn, error), said []string, late bool) error {
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(generous))
	reader := bufio.NewReader(c)
	want := slices.Repeat([]int{http.StatusOK}, len(said)-1)
	if late {
		want = append(want, http.StatusRequestTimeout)
	}
	for i, part := range said {
		if _, err := io.WriteString(c, part); err != nil {
			return err
		}
		if i >= len(want) {
			break
		}
		answer, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if err != nil || answer.StatusCode != want[i] || answer.Close != (want[i] != http.StatusOK) {
			return fmt.Errorf("answer %d is %d, closes: %t, %v", i, answer.StatusCode, answer.Close, err)
		}
	}
	if rest, err := io.ReadAll(reader); len(rest) > 0 || err != nil {
		return fmt.Errorf("at the end comes %q, %v", rest, err)
	}
	return nil
}

// TestLateHeaderAhead tells a client that sent one letter of its next request before it was answered why
// the connection ends.
func TestLateHeaderAhead(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.header, s.patience.idle = 2*time.Second, 200*time.Millisecond })
	arrived, sent := make(chan struct{}), make(chan struct{})
	w.handler = func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-sent
		time.Sleep(200 * time.Millisecond) // The server reads the letter meanwhile.
	}
	c := dialTCP(t, w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP}))
	_ = c.SetDeadline(time.Now().Add(generous))
	_, err := io.WriteString(c, plainGet)
	must(t, err)
	<-arrived
	_, err = io.WriteString(c, "G")
	must(t, err)
	close(sent)
	answers := bufio.NewReader(c)
	readAnswer(t, answers, http.StatusOK)
	readAnswer(t, answers, http.StatusRequestTimeout)
}

func readAnswer(t *testing.T, from *bufio.Reader, want int) *http.Response {
	t.Helper()
	answer, err := http.ReadResponse(from, nil)
	must(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	must(t, err)
	if answer.StatusCode != want {
		t.Errorf("got %d, want %d", answer.StatusCode, want)
	}
	return answer
}

// TestBodyThatNobodyReads answers a request, although its client does not send the body that it has
// promised, and nobody wants it.
func TestBodyThatNobodyReads(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.body = 50 * time.Millisecond })
	w.handler = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) }
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	for _, header := range []string{"", "Content-Type: application/grpc\r\n"} {
		c := dialTCP(t, port)
		_ = c.SetDeadline(time.Now().Add(generous))
		_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n"+header+"\r\n")
		must(t, err)
		if answer := readAnswer(t, bufio.NewReader(c), http.StatusNotFound); !answer.Close {
			t.Error("the connection stays")
		}
	}
	eventually(t, "forgetting the requests", func() bool { return w.sockets.requests.count() == 0 })
}

// TestLateBody answers 408 to a client that is silent in the middle of a body, with both parts of the
// gateway and a backend that wants to read all of it.
func TestLateBody(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.body, s.patience.stream = 200*time.Millisecond, 200*time.Millisecond })
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer app.Close()
	q := requests.New(requests.Config{})
	defer q.Close()
	w.state.Backends["b"] = &routing.Backend{Name: "b", Endpoints: []addrPort{addrPortOf(app.Listener)}}
	w.state.Routes["r"] = &routing.Route{Name: "r", Rules: []routing.Rule{{Split: *split("b")}}}
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP, Routes: []string{"r"}})
	q.Set(&w.state)
	w.handler = func(w http.ResponseWriter, r *http.Request) { q.Serve(w, r, "web") }
	for _, begun := range []string{"Content-Length: 10\r\n\r\nbegun", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n", "Content-Length: 10\r\n\r\n"} {
		for range 20 {
			c := dialTCP(t, port)
			_ = c.SetDeadline(time.Now().Add(generous))
			_, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\n"+begun)
			must(t, err)
			if answer := readAnswer(t, bufio.NewReader(c), http.StatusRequestTimeout); !answer.Close {
				t.Error("the connection stays")
			}
			_ = c.Close()
		}
	}
	transport := &http.Transport{DialContext: to(port), Protocols: protocols(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })}
	defer transport.CloseIdleConnections()
	body, writer := io.Pipe()
	defer writer.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a.example/", body)
	must(t, err)
	response, err := transport.RoundTrip(r)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("with HTTP/2 a silent client gets %d", response.StatusCode)
	}
}
