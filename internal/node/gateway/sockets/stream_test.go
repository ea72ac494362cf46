package sockets

import (
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// deadEndpoint returns an endpoint that refuses connections.
func deadEndpoint(t *testing.T) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freePort(t))
}

func TestStreams(t *testing.T) {
	w := newWorld(t, nil)
	old := time.Now()
	w.state.Backends["one"] = &routing.Backend{Endpoints: []addrPort{deadEndpoint(t), echo(t, "one"), deadEndpoint(t)}}
	w.state.Backends["two"] = &routing.Backend{Endpoints: []addrPort{echo(t, "two")}}
	w.state.Backends["empty"] = &routing.Backend{}
	w.state.Routes["older"] = &routing.Route{Name: "z", Created: old, Stream: split("one")}
	w.state.Routes["newer"] = &routing.Route{Name: "a", Created: old.Add(time.Second), Stream: split("two")}
	port := w.open("tcp", routing.TCP,
		routing.Listener{Protocol: routing.RawTCP, Routes: []string{"newer", "missing"}},
		routing.Listener{Protocol: routing.RawTCP, Routes: []string{"older"}})
	long := strings.Repeat("hello ", 200_000)
	for range 5 { // Whatever endpoint is the first, the others are tried.
		if heard, err := hear(dialTCP(t, port), long); heard != "one\n"+long || err != nil {
			t.Errorf("heard %d bytes, %v", len(heard), err)
		}
	}
	for name, stream := range map[string]*routing.Split{
		"a fault":              {Targets: []routing.Target{{Weight: 1, Fault: 500, Backend: "two"}}},
		"no weight":            {Targets: []routing.Target{{Weight: 0, Backend: "two"}}},
		"no target":            {},
		"no endpoint":          split("empty"),
		"an unknown backend":   split("unknown"),
		"a negative weight":    {Targets: []routing.Target{{Weight: -1, Backend: "two"}}},
		"endpoints all refuse": nil,
	} {
		if stream == nil {
			w.state.Backends["dead"] = &routing.Backend{Endpoints: []addrPort{deadEndpoint(t)}}
			stream = split("dead")
		}
		w.state.Routes["older"] = &routing.Route{Created: old, Stream: stream}
		w.apply()
		if heard, _ := hear(dialTCP(t, port), "hello"); heard != "" {
			t.Errorf("with %s, a client hears %q", name, heard)
		}
	}
	eventually(t, "forgetting all connections", func() bool { return w.sockets.connections.count() == 0 })
}

// TestStreamsOfANamespace has backends of a namespace with as many streams as a namespace may have, by TCP
// and by UDP. Those of another namespace still get connections.
func TestStreamsOfANamespace(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.streams.each = 1 })
	w.state.Backends["full"] = &routing.Backend{Name: "tenant/full:1", Endpoints: []addrPort{echo(t, "full")}}
	w.state.Backends["other"] = &routing.Backend{Name: "shop/other:1", Endpoints: []addrPort{echo(t, "other")}}
	w.state.Routes["full"], w.state.Routes["other"] = &routing.Route{Stream: split("full")}, &routing.Route{Stream: split("other")}
	full := w.open("full", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"full"}})
	other := w.open("other", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"other"}})
	first := dialTCP(t, full)
	eventually(t, "the first stream", func() bool { return w.sockets.streams.of("tenant") == 1 })
	if heard, _ := hear(dialTCP(t, full), "hello"); heard != "" {
		t.Errorf("a second stream to the namespace hears %q", heard)
	}
	if heard, err := hear(dialTCP(t, other), "hello"); heard != "other\nhello" || err != nil {
		t.Errorf("a stream to another namespace hears %q, %v", heard, err)
	}
	if heard, err := hear(first, "hello"); heard != "full\nhello" || err != nil {
		t.Errorf("the first stream hears %q, %v", heard, err)
	}
	eventually(t, "the first stream's end", func() bool { return w.sockets.streams.of("tenant") == 0 })
	if heard, err := hear(dialTCP(t, full), "hello"); heard != "full\nhello" || err != nil {
		t.Errorf("the next stream hears %q, %v", heard, err)
	}
}

func TestWeights(t *testing.T) {
	s := &routing.Split{Targets: []routing.Target{{Backend: "a", Weight: 7}, {Backend: "b", Weight: 3}, {Backend: "c"}}}
	count := map[string]int{}
	for range 10_000 {
		count[choose(s).Backend]++
	}
	if count["a"] < 6500 || count["a"] > 7500 || count["b"] < 2500 || count["c"] > 0 {
		t.Errorf("of 10000: %v", count)
	}
}

// TestHalfClose lets the backend speak for as long as it likes after the client has said its
// last, and the other way round.
func TestHalfClose(t *testing.T) {
	w := newWorld(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{addrPortOf(listener)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("tcp", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}})

	client := dialTCP(t, port)
	accepted, err := listener.Accept()
	must(t, err)
	backend := accepted.(*net.TCPConn)
	t.Cleanup(func() { _ = backend.Close() })
	for _, c := range []net.Conn{client, backend} {
		_ = c.SetDeadline(time.Now().Add(generous))
	}
	must(t, backend.CloseWrite())
	if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the client reads %d bytes, %v", n, err)
	}
	_, err = io.WriteString(client, "still there")
	must(t, err)
	must(t, client.CloseWrite())
	if heard, err := io.ReadAll(backend); string(heard) != "still there" || err != nil {
		t.Errorf("the backend hears %q, %v", heard, err)
	}
	eventually(t, "the end of the stream", func() bool { return w.sockets.connections.count() == 0 })
}

// TestQuietStream closes a stream that carries nothing, and keeps one that does, with TLS and
// without.
func TestQuietStream(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.quiet = time.Second })
	ca := newAuthority(t, "ca")
	w.state.Certificates["c"] = ca.leaf("a.example")
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{echo(t, "b")}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	plain := w.open("tcp", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}})
	secure := w.open("tls", routing.TCP, routing.Listener{Protocol: routing.TLSTerminate, Certificates: []string{"c"}, Routes: []string{"r"}})
	config := &tls.Config{ServerName: "a.example", RootCAs: ca.pool}
	quietTLS, err := dialTLS(secure, config)
	must(t, err)
	defer quietTLS.Close()
	busyTLS, err := dialTLS(secure, config)
	must(t, err)
	defer busyTLS.Close()
	quiet, busy := []net.Conn{dialTCP(t, plain), quietTLS}, []net.Conn{dialTCP(t, plain), busyTLS}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, c := range quiet {
			_, _ = io.Copy(io.Discard, c)
		}
	}()
	for heard := make([]byte, 10); ; {
		for _, c := range busy {
			_ = c.SetDeadline(time.Now().Add(generous))
			if _, err := io.WriteString(c, "x"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(heard); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-ended:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}
