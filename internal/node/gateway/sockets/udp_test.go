package sockets

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// udpEcho is a backend that answers each datagram with its name, how many bytes it had, and
// many bytes after that.
func udpEcho(t *testing.T, name string, more int) netip.AddrPort {
	t.Helper()
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, largestDatagram)
		for {
			n, from, err := packets.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = packets.WriteToUDPAddrPort(append(fmt.Appendf(nil, "%s %d", name, n), make([]byte, more)...), from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = packets.Close()
		<-done
	})
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

func dialUDP(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a datagram until there is an answer.
func exchange(t *testing.T, c net.Conn, datagram []byte) string {
	t.Helper()
	buffer := make([]byte, largestDatagram)
	var n int
	eventually(t, "an answer", func() bool {
		_, _ = c.Write(datagram)
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		var err error
		n, err = c.Read(buffer)
		return err == nil
	})
	return string(bytes.TrimRight(buffer[:n], "\x00"))
}

// hasIPv6 tells whether the host has ::1.
func hasIPv6() bool {
	packets, err := net.ListenPacket("udp", "[::1]:0")
	if err == nil {
		_ = packets.Close()
	}
	return err == nil
}

func TestDatagrams(t *testing.T) {
	w := newWorld(t, nil)
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{udpEcho(t, "b", 0)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("dns", routing.UDP, routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}})
	// A client hears only what comes from the address it has sent to.
	addresses := []string{"127.0.0.1", "127.0.0.2", "127.1.2.3"}
	if hasIPv6() {
		addresses = append(addresses, "::1")
	}
	for _, address := range addresses {
		c := dialUDP(t, netip.AddrPortFrom(netip.MustParseAddr(address), port).String())
		for _, size := range []int{0, 1, 1400, 60000} {
			if heard := exchange(t, c, make([]byte, size)); heard != fmt.Sprintf("b %d", size) {
				t.Errorf("%s hears %q after %d bytes", address, heard, size)
			}
		}
	}
	if got := w.sockets.connections.count(); got != len(addresses) {
		t.Errorf("%d sessions", got)
	}
}

// TestEndpointsOfSessions moves a session whose endpoint goes away.
func TestEndpointsOfSessions(t *testing.T) {
	w := newWorld(t, nil)
	one, two := udpEcho(t, "one", 0), udpEcho(t, "two", 0)
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{one}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("dns", routing.UDP, routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}})
	c := dialUDP(t, local(port))
	heard := []string{exchange(t, c, []byte("x"))}
	// As if an update had come that has only a new backend: what is unchanged is the same.
	state := *w.sockets.state.Load()
	state.Backends = map[string]*routing.Backend{"b": {Endpoints: []addrPort{two}}}
	w.sockets.Set(&state)
	heard = append(heard, exchange(t, c, []byte("x")))
	// An endpoint that refuses is left, too.
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{deadEndpoint(t)}}
	w.apply()
	_, _ = c.Write([]byte("x"))
	w.state.Backends["b"].Endpoints = []addrPort{one}
	w.apply()
	heard = append(heard, exchange(t, c, []byte("x")))
	if !slices.Equal(heard, []string{"one 1", "two 1", "one 1"}) {
		t.Errorf("heard %q", heard)
	}
	w.state.Routes["r"] = &routing.Route{Stream: &routing.Split{Targets: []routing.Target{{Backend: "b", Weight: 1, Fault: 500}}}}
	w.apply()
	if got := w.sockets.connections.count(); got != 0 {
		t.Errorf("%d sessions of a fault", got)
	}
}

// TestSessionsExpire forgets clients that are silent, and has no timer then.
func TestSessionsExpire(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.patience.session, s.patience.newSession = 40*time.Millisecond, 20*time.Millisecond })
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{udpEcho(t, "b", 0)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("dns", routing.UDP, routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}})
	c := dialUDP(t, local(port))
	exchange(t, c, []byte("x"))
	exchange(t, dialUDP(t, local(port)), []byte("x"))
	eventually(t, "the end of the sessions", func() bool { return w.sockets.connections.count() == 0 })
	exchange(t, c, []byte("x"))
}

// TestManySessions makes room by forgetting clients that have sent once, and keeps the others.
func TestManySessions(t *testing.T) {
	w := newWorld(t, func(s *Sockets) { s.connections = newLimit(5, 5) })
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{udpEcho(t, "b", 0)}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("dns", routing.UDP, routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}})
	u := w.sockets.open[key{routing.UDP, port, false}].socket.(*udpSocket)
	known := func() (n int) {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, session := range u.sessions {
			if session.known.Load() {
				n++
			}
		}
		return n
	}
	steady := []net.Conn{dialUDP(t, local(port)), dialUDP(t, local(port))}
	for _, c := range steady {
		exchange(t, c, []byte("x"))
		exchange(t, c, []byte("x"))
	}
	for i := range 1000 { // forged addresses
		u.forward(client{from: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 9)}, []byte("x"))
	}
	if got := w.sockets.connections.count(); got > 5 || known() != 2 {
		t.Errorf("%d sessions, and %d of steady clients", got, known())
	}
	for _, c := range steady {
		exchange(t, c, []byte("x"))
	}
}

// TestAmplification sends an address that has sent one datagram only a bounded answer.
func TestAmplification(t *testing.T) {
	w := newWorld(t, nil)
	flood, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	defer flood.Close()
	w.state.Backends["b"] = &routing.Backend{Endpoints: []addrPort{flood.LocalAddr().(*net.UDPAddr).AddrPort()}}
	w.state.Routes["r"] = &routing.Route{Stream: split("b")}
	port := w.open("dns", routing.UDP, routing.Listener{Protocol: routing.RawUDP, Routes: []string{"r"}})
	c := dialUDP(t, local(port))
	_, err = c.Write([]byte("x"))
	must(t, err)
	buffer := make([]byte, largestDatagram)
	_ = flood.SetReadDeadline(time.Now().Add(generous))
	_, from, err := flood.ReadFromUDPAddrPort(buffer)
	must(t, err)
	u := w.sockets.open[key{routing.UDP, port, false}].socket.(*udpSocket)
	for range 200 {
		_, _ = flood.WriteToUDPAddrPort(make([]byte, 1000), from)
	}
	eventually(t, "the bound", func() bool {
		_, _ = flood.WriteToUDPAddrPort(make([]byte, 1000), from)
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, session := range u.sessions {
			return session.answered.Load() > 2*mostAnswered
		}
		return false
	})
	heard := 0
	for {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := c.Read(buffer)
		if err != nil {
			break
		}
		heard += n
	}
	if heard == 0 || heard > mostAnswered {
		t.Errorf("heard %d bytes", heard)
	}
	_, err = c.Write([]byte("y"))
	must(t, err)
	eventually(t, "an answer after the second datagram", func() bool {
		_, _ = flood.WriteToUDPAddrPort([]byte("z"), from)
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := c.Read(buffer)
		return err == nil
	})
}
