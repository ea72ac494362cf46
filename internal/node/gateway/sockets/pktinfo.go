package sockets

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
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
	var six ipv6.ControlMessage
	if six.Parse(control) == nil && six.Dst != nil {
		address, _ := netip.AddrFromSlice(six.Dst)
		if address = address.Unmap(); address.Is6() && address.IsLinkLocalUnicast() {
			return destination{address, six.IfIndex}
		}
		return destination{address: address}
	}
	var four ipv4.ControlMessage
	if four.Parse(control) == nil && four.Dst != nil {
		address, _ := netip.AddrFromSlice(four.Dst)
		return destination{address: address.Unmap()}
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
