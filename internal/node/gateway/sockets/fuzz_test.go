package sockets

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/node/gateway/hosts"
)

// script is a connection whose client says something and then nothing more. It hears what the
// gateway says.
type script struct {
	said  *bytes.Reader
	heard bytes.Buffer
}

func (s *script) Read(into []byte) (int, error)    { return s.said.Read(into) }
func (s *script) Write(bytes []byte) (int, error)  { return s.heard.Write(bytes) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (s *script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// helloOf returns what a client of TLS says first.
func helloOf(config *tls.Config) []byte {
	c := &script{said: bytes.NewReader(nil)}
	_ = tls.Client(c, config).HandshakeContext(context.Background())
	return c.heard.Bytes()
}

// FuzzClientHello reads anything as the begin of a connection of TLS. A backend gets exactly
// what the client has said so far, and the gateway says nothing then. The server name alone
// decides.
func FuzzClientHello(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	for _, config := range []*tls.Config{
		{ServerName: "pass.example"}, {ServerName: "end.example"}, {ServerName: "a.other"}, {InsecureSkipVerify: true},
		{ServerName: "pass.example", MaxVersion: tls.VersionTLS12, NextProtos: []string{acmeProtocol}},
	} {
		hello := helloOf(config)
		f.Add(hello)
		f.Add(append(hello, "more"...))
		f.Add(hello[:len(hello)/2])
	}
	sockets := New(Config{Log: logrus.NewEntry(logrus.New()), MaxConnections: 1})
	sockets.state.Store(&routing.State{Backends: map[string]*routing.Backend{"b": {Endpoints: make([]netip.AddrPort, 1)}}})
	route := &routing.Route{Stream: split("b")}
	var listeners hosts.Table[*tlsListener]
	for name, l := range map[string]*tlsListener{
		"pass.example": {protocol: routing.TLSPassthrough}, "end.example": {protocol: routing.TLSTerminate, config: &tls.Config{}},
	} {
		l.routes.Set("", route)
		listeners.Set(name, l)
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		c := &script{said: bytes.NewReader(said)}
		socket := &tcpSocket{Sockets: sockets}
		socket.tls = &tls.Config{GetConfigForClient: socket.configFor}
		h := &hello{conn: &conn{Conn: c}, recording: true, settings: &settings{tlsSettings: tlsSettings{listeners: listeners, silent: true}}}
		if err := tls.Server(h, socket.tls).Handshake(); err == nil {
			t.Fatal("the handshake has ended")
		}
		if len(h.recorded) > longestHello || !bytes.HasPrefix(said, h.recorded) {
			t.Errorf("recorded %q of %q", h.recorded, said)
		}
		if h.listener == nil {
			if h.muted && c.heard.Len() > 0 {
				t.Errorf("a name that nobody serves hears %q", c.heard.Bytes())
			}
			return
		}
		if h.listener.protocol != routing.TLSPassthrough {
			return
		}
		// crypto/tls reads ahead, so all that the client has said is recorded or still to read.
		rest, _ := io.ReadAll(c)
		if c.heard.Len() > 0 || !bytes.Equal(append(h.recorded, rest...), said) {
			t.Errorf("the backend gets %q of %q, and the client %q", h.recorded, said, c.heard.Bytes())
		}
	})
}

// FuzzProxyHeader reads anything as the begin of a connection of a trusted proxy, and of a
// stranger. No byte after the header is lost. A stranger's connection either begins with a
// header and is refused, or gives all its bytes.
func FuzzProxyHeader(f *testing.F) {
	from, to := net.TCPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.9:1")), net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:2"))
	for _, version := range []byte{1, 2} {
		header, err := proxyproto.HeaderProxyFromAddrs(version, from, to).Format()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(header)
		f.Add(append(header, bytes.Repeat([]byte("x"), 300)...))
		f.Add(header[:len(header)-1])
	}
	f.Add([]byte("PROXY UNKNOWN\r\nhello"))
	f.Add([]byte("PROXY TCP4 ::ffff:1.2.3.4 1.2.3.4 1 2\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("PRO"))
	f.Fuzz(func(t *testing.T, said []byte) {
		trusted := &conn{Conn: &script{said: bytes.NewReader(said)}, remote: &net.TCPAddr{}}
		headerErr := trusted.readHeader()
		if headerErr == nil {
			rest, err := io.ReadAll(trusted)
			if err != nil || len(rest) >= len(said) || !bytes.HasSuffix(said, rest) {
				t.Errorf("%q leaves %q, %v", said, rest, err)
			}
			if address, ok := trusted.remote.(*net.TCPAddr); !ok || address.String() == "" {
				t.Errorf("%q has the client %v", said, trusted.remote)
			}
			// The library finds the end of the header at the same place.
			reader := bufio.NewReader(bytes.NewReader(said))
			if _, err := proxyproto.Read(reader); err != nil {
				t.Errorf("%q is no header: %v", said, err)
			}
			if again, _ := io.ReadAll(reader); !bytes.Equal(rest, again) {
				t.Errorf("%q leaves %q, want %q", said, rest, again)
			}
		}
		stranger := &conn{Conn: &script{said: bytes.NewReader(said)}, suspect: true}
		all, err := io.ReadAll(stranger)
		if refused := err != nil; refused != (startOf(said) == startYes) || refused && len(all) > 0 {
			t.Errorf("%q of a stranger gives %q, %v", said, all, err)
		}
		if err == nil && startOf(said) == startNo && !bytes.Equal(all, said) {
			t.Errorf("%q of a stranger gives %q", said, all)
		}
		if headerErr == nil && err == nil {
			t.Errorf("%q is a header, and a stranger may send it", said)
		}
	})
}

// FuzzDestination reads anything as the control messages of a datagram. What it makes of it
// can be read again.
func FuzzDestination(f *testing.F) {
	for _, address := range []string{"192.0.2.1", "2001:db8::1", "fe80::1", "ff02::1", "::"} {
		f.Add(destination{address: netip.MustParseAddr(address), index: 1}.control())
	}
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, control []byte) {
		found := destinationOf(control)
		if found.index != 0 && !found.address.IsLinkLocalUnicast() {
			t.Errorf("%v has an interface", found)
		}
		if again := found.control(); again != nil && destinationOf(again) != found {
			t.Errorf("%v is read as %v", found, destinationOf(again))
		}
	})
}

// FuzzDatagram forwards anything of anybody to a backend. There are never more sessions than
// the limit.
func FuzzDatagram(f *testing.F) {
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = packets.Close() })
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	sockets := New(Config{Log: logrus.NewEntry(logger), MaxConnections: 8, MaxPerClient: 2})
	sockets.state.Store(&routing.State{Backends: map[string]*routing.Backend{"b": {Endpoints: []netip.AddrPort{packets.LocalAddr().(*net.UDPAddr).AddrPort()}}}})
	u, err := sockets.listenUDP("127.0.0.1:0", &settings{name: "s", kind: kindStream, stream: split("b")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { u.end(0, 0) })
	f.Add([]byte{127, 0, 0, 1}, uint16(9), []byte("hello"))
	f.Add([]byte{255, 255, 255, 255}, uint16(0), []byte{})
	f.Add(make([]byte, 16), uint16(65535), make([]byte, 2000))
	f.Fuzz(func(t *testing.T, address []byte, port uint16, datagram []byte) {
		from, _ := netip.AddrFromSlice(address)
		u.forward(client{from: netip.AddrPortFrom(from, port)}, datagram)
		if got := sockets.connections.count(); got > 8 {
			t.Errorf("%d sessions", got)
		}
	})
}
