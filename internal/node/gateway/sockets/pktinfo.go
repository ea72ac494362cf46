package sockets

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// controlSize is enough for the control messages that wantDestinations asks for.
const controlSize = 128

// listenPackets opens a socket of UDP on all addresses, of both families if the host has
// IPv6.
func listenPackets(address string) (*net.UDPConn, error) {
	var config net.ListenConfig
	packets, err := config.ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, err
	}
	return packets.(*net.UDPConn), nil
}

// wantDestinations makes a socket tell the address to which each datagram was sent. An answer
// must come from there, or the client does not know it.
func wantDestinations(packets *net.UDPConn) error {
	// A socket of IPv6 takes both, and a socket of IPv4 the second one.
	six := ipv6.NewPacketConn(packets).SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true)
	four := ipv4.NewPacketConn(packets).SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true)
	if six != nil && four != nil {
		return fmt.Errorf("ask for destinations of datagrams: %w", four)
	}
	return nil
}

// destination is the address to which a datagram was sent, or the zero value.
type destination struct {
	address netip.Addr
	// index is that of the interface, for link-local addresses only.
	index int
}

// destinationOf reads the control messages of a datagram.
func destinationOf(control []byte) destination {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return destination{}
	}
	for _, message := range messages {
		data := message.Data
		switch header := message.Header; {
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			// struct in6_pktinfo is the address and then the index of the interface.
			address := netip.AddrFrom16([16]byte(data)).Unmap()
			if address.Is6() && address.IsLinkLocalUnicast() {
				return destination{address, int(binary.NativeEndian.Uint32(data[16:]))}
			}
			return destination{address: address}
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo is the index of the interface, the address of this host, and the
			// destination.
			return destination{address: netip.AddrFrom4([4]byte(data[4:]))}
		}
	}
	return destination{}
}

// control returns the control message that makes a datagram come from the address, or nil if
// the kernel has to choose one.
func (d destination) control() []byte {
	switch {
	case !d.address.IsValid() || d.address.IsMulticast() || d.address == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return nil
	case d.address.Is4():
		return (&ipv4.ControlMessage{Src: d.address.AsSlice()}).Marshal()
	}
	return (&ipv6.ControlMessage{Src: d.address.AsSlice(), IfIndex: d.index}).Marshal()
}
