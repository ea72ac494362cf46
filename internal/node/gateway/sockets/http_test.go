package sockets

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// ask asks with a transport.
func ask(t *testing.T, transport http.RoundTripper, url string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), generous)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(t, err)
	response, err := transport.RoundTrip(r)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return response, string(body)
}

// to returns a dial function that always connects to a port.
func to(port uint16) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, local(port))
	}
}

func protocols(set func(*http.Protocols)) *http.Protocols {
	p := new(http.Protocols)
	set(p)
	return p
}

func TestPlainHTTP(t *testing.T) {
	w := newWorld(t, nil)
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	for _, test := range []struct {
		name string
		set  func(*http.Protocols)
		want string
	}{
		{"HTTP/1.1", func(p *http.Protocols) { p.SetHTTP1(true) }, "HTTP/1.1 from 127.0.0.1:"},
		{"HTTP/2 with prior knowledge", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, "HTTP/2.0 from 127.0.0.1:"},
	} {
		t.Run(test.name, func(t *testing.T) {
			transport := &http.Transport{DialContext: to(port), Protocols: protocols(test.set)}
			defer transport.CloseIdleConnections()
			response, body := ask(t, transport, "http://a.example/")
			if !strings.HasPrefix(body, test.want) || response.Header.Get("Socket") != "web" || response.Header.Get("Alt-Svc") != "" {
				t.Errorf("%v: %s", response.Header, body)
			}
		})
	}
	if listening := w.sockets.Listening(); len(listening) != 1 || listening[0] != (key{routing.TCP, port, false}).String() {
		t.Errorf("listens on %v", listening)
	}
	select {
	case <-w.sockets.Changes():
	default:
		t.Error("no change was told")
	}
}

func TestHTTPS(t *testing.T) {
	w := newWorld(t, nil)
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example", "*.b.example")
	w.handler = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto+" "+r.TLS.ServerName) }
	listener := routing.Listener{Protocol: routing.HTTPS, Certificates: []string{"c"}, Hostname: "*.example"}
	port := w.open("web", routing.TCP, listener)
	w.state.Sockets["web"].HTTP3 = true
	w.state.Sockets["web3"] = &routing.Socket{Transport: routing.UDP, Port: port, PublicPort: 443, Listeners: []routing.Listener{listener}}
	w.apply()
	config := &tls.Config{RootCAs: ca.pool}

	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1.1 a.example": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2.0 a.example": func(p *http.Protocols) { p.SetHTTP2(true) },
	} {
		transport := &http.Transport{DialContext: to(port), TLSClientConfig: config.Clone(), Protocols: protocols(set)}
		response, body := ask(t, transport, "https://a.example/")
		transport.CloseIdleConnections()
		if body != name || response.Header.Get("Alt-Svc") != `h3=":443"; ma=86400` {
			t.Errorf("%s: %v: %s", name, response.Header, body)
		}
	}

	quic := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, ServerName: "x.b.example"}}
	defer quic.Close()
	if response, body := ask(t, quic, "https://"+local(port)+"/"); body != "HTTP/3.0 x.b.example" || response.Header.Get("Socket") != "web3" {
		t.Errorf("%v: %s", response.Header, body)
	}

	_, err := dialTLS(port, &tls.Config{ServerName: "a.other", RootCAs: ca.pool})
	if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("an unknown name gets %v", err)
	}
	unknown := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, ServerName: "a.other"}}
	defer unknown.Close()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+local(port)+"/", nil)
	if _, err := unknown.RoundTrip(r); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("an unknown name gets %v with HTTP/3", err)
	}
	if response, body, err := get(dialTCP(t, port), plainGet); err != nil || response.StatusCode != http.StatusBadRequest || !strings.Contains(body, "https://") {
		t.Errorf("a request without TLS gets %v, %q, %v", response, body, err)
	}
	if _, err := dialTLS(port, &tls.Config{ServerName: "a.example", RootCAs: ca.pool, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

// TestTooManyRequests refuses what is beyond the limit of a client.
func TestTooManyRequests(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.requests = newLimit(10, 1) })
	started, release := make(chan struct{}), make(chan struct{})
	w.handler = func(w http.ResponseWriter, _ *http.Request) {
		started <- struct{}{}
		<-release
	}
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	done := make(chan error)
	first := dialTCP(t, port)
	go func() {
		_, _, err := get(first, plainGet)
		done <- err
	}()
	<-started
	if response, _, err := get(dialTCP(t, port), plainGet); err != nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the second request gets %v: %v", response, err)
	}
	close(release)
	must(t, <-done)
}

// TestCrowded closes connections after each answer while there are nearly too many.
func TestCrowded(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.connections = newLimit(4, 4) })
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	for i := range 4 {
		if response, _, err := get(dialTCP(t, port), plainGet); err != nil || response.Close != (i == 3) {
			t.Errorf("connection %d: %v, %v", i, response, err)
		}
	}
}

// TestSilentBody ends a request whose client does not send the rest of the body.
func TestSilentBody(t *testing.T) {
	for name, protocol := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(s *Sockets) { s.patience.body, s.patience.stream = 50*time.Millisecond, 50*time.Millisecond })
			ended := make(chan error, 1)
			w.handler = func(_ http.ResponseWriter, r *http.Request) {
				_, err := io.ReadAll(r.Body)
				ended <- err
			}
			port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
			body, writer := io.Pipe()
			defer writer.Close()
			transport := &http.Transport{DialContext: to(port), Protocols: protocols(protocol)}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://a.example/", body)
			must(t, err)
			go func() {
				if response, err := transport.RoundTrip(r); err == nil {
					_ = response.Body.Close()
				}
			}()
			_, err = io.WriteString(writer, "a part")
			must(t, err)
			if err := <-ended; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("the handler reads %v", err)
			}
		})
	}
}

// TestUnreadAnswer ends an answer that the client does not read, also if its connection of
// HTTP/2 is alive.
func TestUnreadAnswer(t *testing.T) {
	for name, protocol := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"HTTP/2":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(s *Sockets) { s.patience.write, s.patience.stream = 50*time.Millisecond, 50*time.Millisecond })
			ended := make(chan error, 1)
			w.handler = func(w http.ResponseWriter, _ *http.Request) {
				page := make([]byte, 64<<10)
				for {
					if _, err := w.Write(page); err != nil {
						ended <- err
						return
					}
				}
			}
			port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
			transport := &http.Transport{DialContext: to(port), Protocols: protocols(protocol)}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
			must(t, err)
			response, err := transport.RoundTrip(r)
			must(t, err)
			<-ended
			_ = response.Body.Close()
		})
	}
}
