package sockets

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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// load asks with several clients until it is stopped.
type load struct {
	t       *testing.T
	working sync.WaitGroup
	stopped atomic.Bool
	asked   atomic.Int64
}

// add asks with a transport. A request that fails is an error of the test.
func (l *load) add(name, url string, transport http.RoundTripper) {
	for range 2 {
		l.working.Go(func() {
			for !l.stopped.Load() {
				// A body that cannot be sent again keeps the transport from hiding a lost request.
				r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, io.NopCloser(strings.NewReader("body")))
				if err != nil {
					l.t.Error(err)
					return
				}
				if strings.HasPrefix(name, "HTTP/2") {
					// GOAWAY says which requests the server has not begun with. These may be sent again.
					r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
				}
				response, err := transport.RoundTrip(r)
				if err != nil {
					l.t.Errorf("%s after %d requests: %v", name, l.asked.Load(), err)
					return
				}
				body, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if err != nil || response.StatusCode != http.StatusOK {
					l.t.Errorf("%s: %d, %q, %v", name, response.StatusCode, body, err)
				}
				l.asked.Add(1)
			}
		})
	}
}

// more waits for some more requests.
func (l *load) more(n int64) {
	l.t.Helper()
	from := l.asked.Load()
	eventually(l.t, "more requests", func() bool { return l.t.Failed() || l.asked.Load() > from+n })
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.working.Wait()
}

// loaded is a world with sockets of all kinds of HTTP, and a load on each.
func loaded(t *testing.T, change func(*Sockets)) (*world, *authority, *load) {
	t.Helper()
	w := newWorld(t, change)
	w.handler = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "body" {
			w.WriteHeader(http.StatusBadRequest)
		}
	}
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example")
	plain := w.open("plain", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	listener := routing.Listener{Protocol: routing.HTTPS, Certificates: []string{"c"}}
	secure := w.open("secure", routing.TCP, listener)
	w.state.Sockets["quic"] = &routing.Socket{Transport: routing.UDP, Port: secure, PublicPort: 443, Listeners: []routing.Listener{listener}}
	w.apply()

	l := &load{t: t}
	t.Cleanup(l.stop)
	add := func(name, url string, port uint16, set func(*http.Protocols), fresh bool) {
		transport := &http.Transport{DialContext: to(port), Protocols: protocols(set), TLSClientConfig: &tls.Config{RootCAs: ca.pool}, DisableKeepAlives: fresh}
		t.Cleanup(transport.CloseIdleConnections)
		l.add(name, url, transport)
	}
	one := func(p *http.Protocols) { p.SetHTTP1(true) }
	add("HTTP/1.1", "http://a.example/", plain, one, false)
	add("new connections", "http://a.example/", plain, one, true)
	add("HTTP/2 without TLS", "http://a.example/", plain, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, false)
	add("HTTPS", "https://a.example/", secure, one, false)
	add("new connections with TLS", "https://a.example/", secure, one, true)
	add("HTTP/2", "https://a.example/", secure, func(p *http.Protocols) { p.SetHTTP2(true) }, false)
	return w, ca, l
}

// addQUIC adds a load on HTTP/3.
func (l *load) addQUIC(w *world, ca *authority) {
	quic := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, ServerName: "a.example"}}
	l.t.Cleanup(func() { _ = quic.Close() })
	l.add("HTTP/3", "https://"+local(w.state.Sockets["quic"].Port)+"/", quic)
}

// TestChangesUnderLoad changes certificates, listeners and routes, and loses no request.
func TestChangesUnderLoad(t *testing.T) {
	w, ca, l := loaded(t, nil)
	l.addQUIC(w, ca)
	for i := range 30 {
		l.more(50)
		if t.Failed() {
			break
		}
		w.state.Certificates["c"] = ca.leaf("a.example", fmt.Sprintf("%d.example", i))
		if i%3 == 0 {
			w.state.Sockets["secure"].Listeners = append(w.state.Sockets["secure"].Listeners, routing.Listener{Protocol: routing.HTTPS, Hostname: fmt.Sprintf("%d.example", i), Certificates: []string{"c"}})
			w.state.Routes[fmt.Sprint(i)] = &routing.Route{}
		}
		w.apply()
	}
	l.stop()
}

// TestDrainUnderLoad stops while clients ask, and loses no request. The clients go away as
// soon as they are told, as behind a load balancer.
func TestDrainUnderLoad(t *testing.T) {
	w, _, l := loaded(t, func(s *Sockets) { s.cfg.Notice, s.cfg.Patience = time.Second, generous })
	l.more(100)
	w.sockets.Drain()
	l.more(300)
	l.stop()
	w.stop()
	if got := w.sockets.connections.count(); got != 0 {
		t.Errorf("%d connections are left", got)
	}
}

// TestStop stops at once if nobody asks for anything: clients of all versions that wait, clients
// that never asked, and clients in the handshake of TLS lose their connections.
func TestStop(t *testing.T) {
	w, ca, l := loaded(t, func(s *Sockets) {
		s.cfg.Notice, s.cfg.Patience, s.patience.grace = time.Hour, time.Hour, time.Hour
		s.patience.header = time.Hour
	})
	l.addQUIC(w, ca)
	l.more(50)
	l.stop()
	for _, name := range []string{"plain", "secure"} {
		dialTCP(t, w.state.Sockets[name].Port)
	}
	fresh, err := dialTLS(w.state.Sockets["secure"].Port, &tls.Config{RootCAs: ca.pool, ServerName: "a.example"})
	must(t, err)
	defer fresh.Close()
	eventually(t, "accepting the connections", func() bool { return w.sockets.connections.count() >= 7 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	select {
	case <-stopped:
	case <-time.After(generous):
		t.Fatal("the sockets wait for nobody")
	}
	if got := w.sockets.connections.count(); got != 0 {
		t.Errorf("%d connections are left", got)
	}
}

// TestStopPatiently lets a request and a stream end.
func TestStopPatiently(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.cfg.Patience = time.Hour })
	started, release := make(chan struct{}), make(chan struct{})
	w.handler = func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "done")
	}
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{echo(t, "b")}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	stream := dialTCP(t, w.open("stream", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}}))
	reader := bufio.NewReader(stream)
	if line, err := reader.ReadString('\n'); line != "b\n" {
		t.Fatalf("%q, %v", line, err)
	}
	slow := dialTCP(t, port)
	answered := make(chan string)
	go func() {
		_, body, err := get(slow, plainGet)
		answered <- fmt.Sprint(body, err)
	}()
	<-started
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.stop()
	}()
	eventually(t, "the end of the sockets", func() bool { return len(w.sockets.Listening()) == 0 })
	close(release)
	if got := <-answered; got != "done<nil>" {
		t.Errorf("the request gets %s", got)
	}
	if heard, err := hear(stream, "bye"); heard != "bye" || err != nil {
		t.Errorf("the stream says %q, %v", heard, err)
	}
	<-stopped
}

// TestDrain tells clients of both versions to go, and still serves them and new ones.
func TestDrain(t *testing.T) {
	w := newWorld(t, nil)
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	old := dialTCP(t, port)
	if response, _, err := get(old, plainGet); err != nil || response.Close {
		t.Fatalf("before: %v, %v", response, err)
	}
	w.sockets.Drain()
	for name, c := range map[string]net.Conn{"an old": old, "a new": dialTCP(t, port)} {
		if response, _, err := get(c, plainGet); err != nil || !response.Close {
			t.Errorf("%s connection gets %v, %v", name, response, err)
		}
	}
	// A client of HTTP/2 makes a new connection for each request.
	var dials atomic.Int64
	transport := &http.Transport{Protocols: protocols(func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return to(port)(ctx, network, address)
	}
	defer transport.CloseIdleConnections()
	eventually(t, "GOAWAY", func() bool {
		ask(t, transport, "http://a.example/")
		return dials.Load() > 1
	})
	if len(w.sockets.Listening()) != 1 {
		t.Error("the socket is closed")
	}
}

// TestRemovedSocket lets a request end whose socket is no longer wanted, and closes a
// connection that has become another protocol when patience has ended.
func TestRemovedSocket(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.cfg.Patience = 300 * time.Millisecond })
	started, release := make(chan struct{}), make(chan struct{})
	w.handler = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/socket" {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}
			return
		}
		close(started)
		<-release
		_, _ = io.WriteString(w, "done")
	}
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	upgraded := dialTCP(t, port)
	_, err := io.WriteString(upgraded, "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	must(t, err)
	if line, err := bufio.NewReader(upgraded).ReadString('\n'); err != nil || !strings.Contains(line, "101") {
		t.Fatalf("%q, %v", line, err)
	}
	type result struct {
		body string
		err  error
	}
	done := make(chan result)
	slow := dialTCP(t, port)
	go func() {
		_, body, err := get(slow, plainGet)
		done <- result{body, err}
	}()
	<-started
	delete(w.state.Sockets, "web")
	w.apply()
	eventually(t, "the end of the socket", func() bool {
		c, err := net.Dial("tcp", local(port))
		if err == nil {
			_ = c.Close()
		}
		return err != nil && len(w.sockets.Listening()) == 0
	})
	close(release)
	if got := <-done; got.err != nil || got.body != "done" {
		t.Errorf("the request gets %q, %v", got.body, got.err)
	}
	_ = upgraded.SetReadDeadline(time.Now().Add(generous))
	if _, err := io.Copy(io.Discard, upgraded); errors.Is(err, context.DeadlineExceeded) {
		t.Error("the other protocol goes on")
	}
	eventually(t, "the end of all connections", func() bool { return w.sockets.connections.count() == 0 })
}

// TestRemovedHTTP3 lets a request of HTTP/3 end whose socket is no longer wanted. The port is
// free for another use then.
func TestRemovedHTTP3(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.cfg.Patience = generous })
	started, release := make(chan struct{}), make(chan struct{})
	w.handler = func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-release
		_, _ = io.WriteString(w, "done")
	}
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example")
	port := w.open("web", routing.UDP, routing.Listener{Protocol: routing.HTTPS, Certificates: []string{"c"}})
	quic := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, ServerName: "a.example"}}
	defer quic.Close()
	done := make(chan string)
	go func() {
		_, body := ask(t, quic, "https://"+local(port)+"/")
		done <- body
	}()
	<-started
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{udpEcho(t, "b", 0)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	w.state.Sockets["web"].Listeners[0] = routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}}
	w.apply()
	if !strings.Contains(w.log.text(), "connections of its former use have not ended yet") {
		t.Error(w.log.text())
	}
	close(release)
	if body := <-done; body != "done" {
		t.Errorf("the request gets %q", body)
	}
	_ = quic.Close()
	eventually(t, "the other use of the port", func() bool { return len(w.sockets.Listening()) == 1 })
	if heard := exchange(t, dialUDP(t, local(port)), []byte("x")); heard != "b 1" {
		t.Errorf("heard %q", heard)
	}
}

// TestWantedAgain keeps a socket that is wanted again before it has closed.
func TestWantedAgain(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.cfg.Notice = generous })
	w.sockets.cfg.Notice = generous
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	socket := w.state.Sockets["web"]
	first := w.sockets.open[key{routing.TCP, port, false}].socket
	delete(w.state.Sockets, "web")
	w.apply()
	if response, _, err := get(dialTCP(t, port), plainGet); err != nil || !response.Close || len(w.sockets.Listening()) != 0 {
		t.Errorf("a socket that leaves: %v, %v, %v", response, err, w.sockets.Listening())
	}
	w.state.Sockets["web"] = socket
	w.apply()
	if response, _, err := get(dialTCP(t, port), plainGet); err != nil || response.Close || len(w.sockets.Listening()) != 1 {
		t.Errorf("a socket that is wanted again: %v, %v, %v", response, err, w.sockets.Listening())
	}
	if w.sockets.open[key{routing.TCP, port, false}].socket != first {
		t.Error("it is another socket")
	}
	w.sockets.mu.Lock()
	w.sockets.cfg.Notice = 0
	w.sockets.mu.Unlock()
}

// TestTakenPort says who has a port, and takes it when it is free.
func TestTakenPort(t *testing.T) {
	w := newWorld(t, nil)
	other, err := net.Listen("tcp", ":0")
	must(t, err)
	port := addrPortOf(other).Port()
	w.state.Sockets["web"] = &routing.Socket{Transport: routing.TCP, Port: port, Listeners: []routing.Listener{{Protocol: routing.HTTP}}}
	w.apply()
	w.sockets.tryAgain()
	if text := w.log.text(); len(w.sockets.Listening()) != 0 || strings.Count(text, fmt.Sprintf("open port %d/tcp for web: sockets.test (process", port)) != 1 {
		t.Errorf("listens on %v: %s", w.sockets.Listening(), text)
	}
	must(t, other.Close())
	eventually(t, "opening the port", func() bool { return len(w.sockets.Listening()) == 1 })
}

// TestAnotherKind changes what a port speaks, without another socket.
func TestAnotherKind(t *testing.T) {
	w := newWorld(t, nil)
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{echo(t, "b")}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	kept := dialTCP(t, port)
	reader := bufio.NewReader(kept)
	askKept := func() {
		t.Helper()
		_ = kept.SetDeadline(time.Now().Add(generous))
		_, err := io.WriteString(kept, plainGet)
		must(t, err)
		response, err := http.ReadResponse(reader, nil)
		must(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		must(t, err)
	}
	askKept()
	w.state.Sockets["web"].Listeners[0] = routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}}
	w.apply()
	if heard, err := hear(dialTCP(t, port), "hello"); heard != "b\nhello" || err != nil {
		t.Errorf("heard %q, %v", heard, err)
	}
	askKept()
}

// TestSlowClients has a bounded number of connections, whatever comes, and serves others when
// the slow ones have had their time.
func TestSlowClients(t *testing.T) {
	const slow, most = 2000, 300
	w := newWorld(t, func(s *Sockets) {
		s.connections = newLimit(most, most)
		s.patience.header = 500 * time.Millisecond
	})
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	var highest atomic.Int64
	clients := make([]net.Conn, 0, slow)
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	for range slow {
		c, err := net.Dial("tcp", local(port))
		if err != nil {
			continue
		}
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\nX: "))
		clients = append(clients, c)
		highest.Store(max(highest.Load(), int64(w.sockets.connections.count())))
	}
	if highest.Load() > most || highest.Load() < most/2 {
		t.Errorf("%d connections at most", highest.Load())
	}
	eventually(t, "an answer", func() bool {
		c, err := net.Dial("tcp", local(port))
		if err != nil {
			return false
		}
		defer c.Close()
		response, body, err := get(c, plainGet)
		return err == nil && response.StatusCode == http.StatusOK && bytes.HasPrefix([]byte(body), []byte("HTTP/1.1"))
	})
	eventually(t, "forgetting the slow clients", func() bool { return w.sockets.connections.count() == 0 })
}
