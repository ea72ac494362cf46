package announce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Linux is the host that this process runs on.
type Linux struct{}

// Place implements Host. It returns the interface that has the smallest network with the
// address.
func (Linux) Place(address netip.Addr) (Place, error) {
	family := netlink.FAMILY_V6
	if address.Is4() {
		family = netlink.FAMILY_V4
	}
	all, err := netlink.AddrList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("list addresses of the host: %w", err)
	}
	index, bits := 0, -1
	for _, one := range all {
		ip, ok := netip.AddrFromSlice(one.IP)
		if !ok {
			continue
		}
		if ip.Unmap() == address {
			if one.Flags&unix.IFA_F_PERMANENT != 0 {
				return nil, fmt.Errorf("%w: the host itself has %s. Remove it from the host's network configuration", ErrUnfit, address)
			}
			continue // an earlier process's, which vanishes
		}
		ones, _ := one.Mask.Size()
		if prefix, err := ip.Unmap().Prefix(ones); err == nil && ones < address.BitLen() && prefix.Contains(address) && ones > bits {
			index, bits = one.LinkIndex, ones
		}
	}
	if bits < 0 {
		return nil, fmt.Errorf("%w: no interface of this host is in the network of %s", ErrUnfit, address)
	}
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find interface of %s: %w", address, err)
	}
	return &linuxPlace{link: link, address: address}, nil
}

// linuxPlace is an interface with an address.
type linuxPlace struct {
	link    netlink.Link
	address netip.Addr
}

func (p *linuxPlace) String() string { return p.link.Attrs().Name }

// Put implements Place. The address is deprecated from the start, so that the host does not
// choose it for connections of its own.
func (p *linuxPlace) Put(lifetime time.Duration) error {
	entry := p.entry()
	entry.ValidLft, entry.PreferedLft = int(lifetime/time.Second), 0
	if err := netlink.AddrReplace(p.link, entry); err != nil {
		return fmt.Errorf("put %s on %s: %w", p.address, p, err)
	}
	return nil
}

// Remove implements Place.
func (p *linuxPlace) Remove() error {
	err := netlink.AddrDel(p.link, p.entry())
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("take %s off %s: %w", p.address, p, err)
	}
	return nil
}

func (p *linuxPlace) entry() *netlink.Addr {
	bits := p.address.BitLen()
	entry := &netlink.Addr{IPNet: &net.IPNet{IP: p.address.AsSlice(), Mask: net.CIDRMask(bits, bits)}}
	if p.address.Is6() {
		// Duplicate address detection would delay the address, and the Lease already
		// makes sure that there is one holder.
		entry.Flags = unix.IFA_F_NODAD
	}
	return entry
}

// Tell implements Place.
func (p *linuxPlace) Tell() error {
	hardware := p.link.Attrs().HardwareAddr
	if len(hardware) != 6 {
		return nil // no Ethernet, so no neighbors that remember
	}
	tell := p.tellNDP
	if p.address.Is4() {
		tell = p.tellARP
	}
	if err := tell(hardware); err != nil {
		return fmt.Errorf("announce %s on %s: %w", p.address, p, err)
	}
	return nil
}

// These are the operations of ARP (RFC 826).
const (
	arpRequest = 1
	arpReply   = 2
)

// tellARP broadcasts the address as a request and as an answer (RFC 5227, section 3): some
// hosts learn from one, and some from the other.
func (p *linuxPlace) tellARP(hardware net.HardwareAddr) error {
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP))
	// With SOCK_DGRAM the kernel writes the Ethernet header.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	everybody := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: p.link.Attrs().Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	var faults []error
	for _, operation := range []uint16{arpRequest, arpReply} {
		faults = append(faults, unix.Sendto(socket, arpPacket(operation, hardware, p.address), 0, everybody))
	}
	return errors.Join(faults...)
}

// arpPacket returns a gratuitous ARP packet (RFC 826) for Ethernet and IPv4.
func arpPacket(operation uint16, hardware net.HardwareAddr, address netip.Addr) []byte {
	packet := []byte{0, 1, 8, 0, 6, 4}
	packet = binary.BigEndian.AppendUint16(packet, operation)
	packet = append(append(packet, hardware...), address.AsSlice()...)
	target := make([]byte, 6)
	if operation == arpReply {
		target = hardware
	}
	return append(append(packet, target...), address.AsSlice()...)
}

// tellNDP sends an unsolicited neighbor advertisement to all nodes (RFC 4861, section
// 7.2.6).
func (p *linuxPlace) tellNDP(hardware net.HardwareAddr) error {
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	index := p.link.Attrs().Index
	// Neighbors ignore advertisements with another hop limit than 255 (section 7.1.2).
	err = errors.Join(unix.SetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		unix.SetsockoptInt(socket, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, index))
	if err != nil {
		return err
	}
	allNodes := netip.MustParseAddr("ff02::1").As16()
	return unix.Sendto(socket, advertisement(hardware, p.address), 0, &unix.SockaddrInet6{Addr: allNodes, ZoneId: uint32(index)})
}

// advertisement returns an ICMPv6 packet, in which the kernel fills in the checksum. The
// flag override (0x20) replaces what neighbors know.
func advertisement(hardware net.HardwareAddr, address netip.Addr) []byte {
	packet := []byte{136, 0, 0, 0, 0x20, 0, 0, 0}
	packet = append(packet, address.AsSlice()...)
	// The option with the target's link-layer address, in units of 8 bytes.
	return append(append(packet, 2, 1), hardware...)
}
