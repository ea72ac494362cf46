package sockets

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

func header(t *testing.T, version byte, source string) string {
	t.Helper()
	from := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(source))
	to := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:443"))
	text, err := proxyproto.HeaderProxyFromAddrs(version, from, to).Format()
	must(t, err)
	return string(text)
}

func TestProxyProtocol(t *testing.T) {
	w := newWorld(t, nil)
	w.handler = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{echo(t, "b")}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	streams := w.open("tcp", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}})
	set := func(trusted bool) {
		for _, socket := range w.state.Sockets {
			socket.ProxyProtocol, socket.Trusted = true, nil
			if trusted {
				socket.Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			}
		}
		w.apply()
	}
	const client = "203.0.113.9:1234"
	local, err := (&proxyproto.Header{Version: 2, Command: proxyproto.LOCAL}).Format()
	must(t, err)
	udp, err := (&proxyproto.Header{
		Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UDPv4,
		SourceAddr: &net.UDPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 1}, DestinationAddr: &net.UDPAddr{IP: net.IPv4(1, 2, 3, 4), Port: 1},
	}).Format()
	must(t, err)
	for _, test := range []struct {
		name, header string
		trusted      bool
		http, stream string
	}{
		{"version 1", header(t, 1, client), true, client, "b\nhello"},
		{"version 2", header(t, 2, client), true, client, "b\nhello"},
		{"IPv6", header(t, 2, "[2001:db8::1]:99"), true, "[2001:db8::1]:99", "b\nhello"},
		{"of the proxy itself", string(local), true, "127.0.0.1:", "b\nhello"},
		{"unknown", "PROXY UNKNOWN\r\n", true, "127.0.0.1:", "b\nhello"},
		{"of UDP", string(udp), true, "", ""},
		{"none of a trusted proxy", "", true, "", ""},
		{"broken", "PROXY TCP4 1.2.3.4\r\n", true, "", ""},
		{"none of a stranger", "", false, "127.0.0.1:", "b\nhello"},
		{"version 1 of a stranger", header(t, 1, client), false, "", "b\n"},
		{"version 2 of a stranger", header(t, 2, client), false, "", "b\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			set(test.trusted)
			response, body, err := get(dialTCP(t, port), test.header+plainGet)
			if ok := err == nil && response.StatusCode == http.StatusOK; ok != (test.http != "") || !strings.HasPrefix(body, test.http) {
				t.Errorf("the request gets %v, %q, %v", response, body, err)
			}
			if heard, _ := hear(dialTCP(t, streams), test.header+"hello"); heard != test.stream && (test.stream != "b\n" || heard != "") {
				t.Errorf("the stream hears %q, want %q", heard, test.stream)
			}
		})
	}
	eventually(t, "forgetting all clients", func() bool { return w.sockets.connections.count() == 0 && w.sockets.proxied.count() == 0 })
}

// TestStrangerInPieces sends the header byte by byte.
func TestStrangerInPieces(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.quiet = 20 * time.Millisecond })
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{echo(t, "b")}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("tcp", routing.TCP, routing.Listener{Protocol: routing.RawTCP, Routes: []string{"r"}})
	w.state.Sockets["tcp"].ProxyProtocol = true
	w.apply()
	c := dialTCP(t, port)
	for _, b := range []byte(header(t, 2, "203.0.113.9:1234")) {
		if _, err := c.Write([]byte{b}); err != nil {
			break
		}
		time.Sleep(3 * time.Millisecond)
	}
	_ = c.SetDeadline(time.Now().Add(generous))
	if heard, _ := io.ReadAll(c); len(heard) > len("b\n") {
		t.Errorf("the backend has heard %q", heard)
	}
}

// TestClientsBehindProxy bounds the clients that a trusted proxy names, and not the proxy.
func TestClientsBehindProxy(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.connections, s.proxied = newLimit(10, 1), newLimit(10, 1) })
	port := w.open("web", routing.TCP, routing.Listener{Protocol: routing.HTTP})
	w.state.Sockets["web"].ProxyProtocol = true
	w.state.Sockets["web"].Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	w.apply()
	first, second, third := dialTCP(t, port), dialTCP(t, port), dialTCP(t, port)
	for _, test := range []struct {
		c      net.Conn
		client string
		ok     bool
	}{{first, "203.0.113.1:1", true}, {second, "203.0.113.1:2", false}, {third, "203.0.113.2:1", true}} {
		if _, _, err := get(test.c, header(t, 2, test.client)+plainGet); (err == nil) != test.ok {
			t.Errorf("%s gets %v", test.client, err)
		}
	}
}

func TestLimit(t *testing.T) {
	l := newLimit(5, 2)
	a, b, c := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::ffff:1")
	for i, test := range []struct {
		client  netip.Addr
		trusted bool
		ok      bool
	}{
		{a, false, true}, {netip.MustParseAddr("::ffff:192.0.2.1"), false, true}, {a, false, false},
		{b, false, true}, {c, false, true}, {b, false, false}, {b, true, true}, {netip.MustParseAddr("192.0.2.2"), true, false},
	} {
		if ok := l.take(test.client, test.trusted); ok != test.ok {
			t.Errorf("%d: %s gets %v", i, test.client, ok)
		}
	}
	for _, client := range []netip.Addr{a, a, b, b, c} {
		l.give(client)
	}
	if l.total != 0 || l.clients != nil {
		t.Errorf("left: %d, %v", l.total, l.clients)
	}
	for memory, want := range map[uint64]int{0: 1024, 1 << 30: 2048, 8 << 30: 16384, 1 << 40: 65536} {
		if got := connectionsFor(memory, 1<<20); got != want {
			t.Errorf("%d bytes: %d connections, want %d", memory, got, want)
		}
	}
	if got := connectionsFor(8<<30, 1024); got != 256 {
		t.Errorf("with 1024 files: %d connections", got)
	}
}
