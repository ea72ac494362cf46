package mesh

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	wireguard "golang.zx2c4.com/wireguard/device"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

// relayQueue is how many datagrams of streams may wait for WireGuard.
const relayQueue = 256

// socket is the UDP port of WireGuard and of the mesh, and the Relays of servers beside it. It is WireGuard's Bind. An endpoint
// is a peer: the mesh chooses the way of each packet.
type socket struct {
	conn.Bind
	// peerOf returns a peer by its ID, or nil.
	peerOf func(mesh.ID) *peer
	// packet takes a packet of the mesh that has come from an address.
	packet func(from netip.AddrPort, packet []byte)
	// awake is called with a peer that gets its first packet after a while, so that a way is chosen.
	awake func(*peer)
	// relayed has WireGuard's packets that have come by streams.
	relayed chan relayed

	mu     sync.Mutex
	closed chan struct{} // guarded by mu: closed when the socket is. It is nil while the socket is not open
}

// relayed is a packet of a peer that has come through a Relay.
type relayed struct {
	from   *peer
	packet []byte
}

var _ conn.Bind = (*socket)(nil)

// Open implements conn.Bind.
func (s *socket) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receive, actual, err := s.Bind.Open(port)
	if err != nil {
		return nil, 0, err
	}
	closed := make(chan struct{})
	s.mu.Lock()
	s.closed = closed
	s.mu.Unlock()
	for i, next := range receive {
		receive[i] = func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
			n, err := next(packets, sizes, from)
			for i := range n {
				if sizes[i] > 0 {
					sizes[i], from[i] = s.sort(packets[i][:sizes[i]], from[i])
				}
			}
			return n, err
		}
	}
	return append(receive, func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		select {
		case one := <-s.relayed:
			sizes[0], from[0] = copy(packets[0], one.packet), one.from
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}), actual, nil
}

// Close implements conn.Bind.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.closed != nil {
		close(s.closed)
		s.closed = nil
	}
	s.mu.Unlock()
	return s.Bind.Close()
}

// sort returns the size of WireGuard's packet that is at the beginning of packet, and where it comes from. Packets of the mesh
// are handled, and have the size 0.
func (s *socket) sort(packet []byte, from conn.Endpoint) (int, conn.Endpoint) {
	kind, ok := mesh.KindOf(packet)
	if !ok {
		return len(packet), from
	}
	address := netip.AddrPortFrom(from.DstIP().Unmap(), from.(*conn.StdNetEndpoint).Port())
	if kind == mesh.KindDeliver {
		id, datagram, ok := mesh.Unwrap(packet)
		p := s.peerOf(id)
		if _, isMesh := mesh.KindOf(datagram); ok && p != nil && !isMesh {
			return copy(packet, datagram), p
		}
	}
	s.packet(address, packet)
	return 0, from
}

// ParseEndpoint implements conn.Bind. An endpoint of WireGuard's configuration is the ID of a peer.
func (s *socket) ParseEndpoint(text string) (conn.Endpoint, error) {
	id, err := mesh.ParseID(text)
	if err != nil {
		return nil, err
	}
	if p := s.peerOf(id); p != nil {
		return p, nil
	}
	return nil, errors.New("there is no such peer")
}

// Send implements conn.Bind.
func (s *socket) Send(packets [][]byte, to conn.Endpoint) error {
	p, ok := to.(*peer)
	if !ok {
		return s.Bind.Send(packets, to)
	}
	p.talked.Store(time.Now().UnixNano())
	if !p.active.Swap(true) || p.chosen.Load() == nil {
		s.awake(p)
	}
	if len(packets) == 1 && len(packets[0]) == wireguard.MessageInitiationSize {
		first := slices.Clone(packets[0])
		p.first.Store(&first)
	}
	return s.sendChosen(p, packets)
}

// again implements transport. WireGuard itself would send a handshake again after five seconds.
func (s *socket) again(p *peer) {
	if first := p.first.Swap(nil); first != nil {
		_ = s.sendChosen(p, [][]byte{*first})
	}
}

// sendChosen sends packets to a peer by the way that is in use.
func (s *socket) sendChosen(p *peer, packets [][]byte) error {
	way := p.chosen.Load()
	switch {
	case way == nil:
		return nil // WireGuard sends handshakes again
	case way.link != nil:
		s.sendBy(way.link, p.id, packets)
		return nil
	default:
		return s.send(packets, way.address)
	}
}

func (s *socket) send(packets [][]byte, to netip.AddrPort) error {
	err := s.Bind.Send(packets, &conn.StdNetEndpoint{AddrPort: to})
	if unreachable(err) {
		return nil // the way is replaced when its pings find that out
	}
	return err
}

// unreachable tells whether an error is about the way, not about the socket.
func unreachable(err error) bool {
	for _, known := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EPERM, syscall.EADDRNOTAVAIL, syscall.EMSGSIZE, syscall.ECONNREFUSED, syscall.EINVAL, syscall.EAFNOSUPPORT} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// sendTo sends a packet of the mesh to an address.
func (s *socket) sendTo(to netip.AddrPort, packet []byte) { _ = s.send([][]byte{packet}, to) }

// sendBy sends datagrams to a peer through a Relay, over UDP if that works.
func (s *socket) sendBy(link *mesh.Link, to mesh.ID, datagrams [][]byte) {
	if _, usable := link.Seen(); !usable {
		for _, datagram := range datagrams {
			link.Send(to, datagram)
		}
		return
	}
	packets := make([][]byte, len(datagrams))
	for i, datagram := range datagrams {
		packets[i] = mesh.Wrap(mesh.KindSend, to, datagram)
	}
	_ = s.send(packets, link.UDP)
}

// received takes a packet of WireGuard that has come by the stream of a Relay.
func (s *socket) received(from mesh.ID, datagram []byte) {
	p := s.peerOf(from)
	if p == nil {
		return
	}
	select {
	case s.relayed <- relayed{p, append([]byte(nil), datagram...)}:
	default: // as in any network, what is too much is lost
	}
}

// A peer is an endpoint of WireGuard. Only the mesh knows where it is.

// ClearSrc implements conn.Endpoint.
func (p *peer) ClearSrc() {}

// SrcToString implements conn.Endpoint.
func (p *peer) SrcToString() string { return "" }

// DstToString implements conn.Endpoint.
func (p *peer) DstToString() string { return p.id.String() }

// DstToBytes implements conn.Endpoint. WireGuard makes cookies from it when it is under load.
func (p *peer) DstToBytes() []byte { return p.id[:] }

// DstIP implements conn.Endpoint. Under load, WireGuard limits the handshakes of each address.
func (p *peer) DstIP() netip.Addr {
	var address [16]byte
	copy(address[copy(address[:], "kedge"):], p.id[:])
	return netip.AddrFrom16(address)
}

// SrcIP implements conn.Endpoint.
func (p *peer) SrcIP() netip.Addr { return netip.Addr{} }
