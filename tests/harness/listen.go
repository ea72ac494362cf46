package harness

import "net"

// Listen listens on a TCP address of the host until the test ends.
func (h *Host) Listen(address string) net.Listener {
	h.t.Helper()
	var listener net.Listener
	var err error
	h.do(func() { listener, err = net.Listen("tcp", address) })
	if err != nil {
		h.t.Fatalf("listen on %s: %v", h.Name, err)
	}
	h.t.Cleanup(func() { listener.Close() })
	return listener
}

// ListenPacket listens on a UDP address, or with the network unixgram on a
// path, of the host until the test ends.
func (h *Host) ListenPacket(network, address string) net.PacketConn {
	h.t.Helper()
	var conn net.PacketConn
	var err error
	h.do(func() { conn, err = net.ListenPacket(network, address) })
	if err != nil {
		h.t.Fatalf("listen on %s: %v", h.Name, err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}
