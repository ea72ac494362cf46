package mesh

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	wireguard "golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

const (
	// DeviceName is the interface of the mesh.
	DeviceName = "kedge-mesh"
	// MTU is that of pods, in bytes. With the headers of WireGuard (32), of a Relay (10), of UDP (8) and of IPv6 (40), packets
	// have 1,490 bytes then. narrowMTU holds until a packet of this size has arrived at a node.
	MTU       = 1400
	narrowMTU = 1280
	// widest is the size of WireGuard's packet for a packet of MTU bytes.
	widest = MTU + wireguard.MessageTransportSize
)

// userspace is WireGuard in this process.
type userspace struct {
	wireguard *wireguard.Device
	link      netlink.Link
	log       *logrus.Entry
}

// Start makes the interface of the mesh, with WireGuard in this process. own are the addresses of this node in it.
func (m *Mesh) Start(own []netip.Addr) error {
	tunnel, err := tun.CreateTUN(DeviceName, MTU)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("make interface %s: this kernel has no TUN devices: load the module tun, or choose another flannel-backend: %w", DeviceName, err)
	}
	if err != nil {
		return fmt.Errorf("make interface %s: %w", DeviceName, err)
	}
	silent := &wireguard.Logger{Verbosef: wireguard.DiscardLogf, Errorf: m.log.Debugf}
	d := &userspace{wireguard: wireguard.NewDevice(tunnel, m.socket, silent), log: m.log}
	d.wireguard.DisableSomeRoamingForBrokenMobileSemantics() // the mesh chooses the way
	if err := d.configure(own, m.secret.wireGuard, m.cfg.Port); err != nil {
		d.wireguard.Close()
		return err
	}
	m.mu.Lock()
	m.device, m.peers = d, map[mesh.ID]*peer{}
	m.known.Store(&m.peers)
	m.mu.Unlock()
	if m.cfg.Relay != nil {
		m.cfg.Relay.UseUDP(m.socket.sendTo)
	}
	return nil
}

// Removed returns a channel that is closed when somebody has removed the interface. Start makes it again, after Stop.
func (m *Mesh) Removed() <-chan struct{} { return m.device.gone() }

// Stop removes the interface.
func (m *Mesh) Stop() { m.device.close() }

// configure gives the interface its key, port and addresses, and sets it up.
func (d *userspace) configure(own []netip.Addr, private mesh.Key, port uint16) error {
	if err := d.wireguard.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\n", hex.EncodeToString(private[:]), port)); err != nil {
		return fmt.Errorf("configure WireGuard: %w", err)
	}
	if err := d.wireguard.Up(); err != nil {
		return fmt.Errorf("open UDP port %d for the mesh: %w", port, err)
	}
	var err error
	if d.link, err = netlink.LinkByName(DeviceName); err != nil {
		return fmt.Errorf("find interface %s: %w", DeviceName, err)
	}
	for _, address := range own {
		ip := net.IP(address.AsSlice())
		err := netlink.AddrReplace(d.link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(address.BitLen(), address.BitLen())}})
		if err != nil {
			return fmt.Errorf("give interface %s the address %s: %w", DeviceName, address, err)
		}
	}
	if err := netlink.LinkSetUp(d.link); err != nil {
		return fmt.Errorf("set up interface %s: %w", DeviceName, err)
	}
	return nil
}

// set implements device.
func (d *userspace) set(p Peer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "public_key=%s\nreplace_allowed_ips=true\nendpoint=%s\n", hex.EncodeToString(p.Keys.WireGuard[:]), mesh.IDOf(p.Name))
	for _, cidr := range p.PodCIDRs {
		fmt.Fprintf(&text, "allowed_ip=%s\n", cidr)
	}
	if err := d.wireguard.IpcSet(text.String()); err != nil {
		return fmt.Errorf("tell WireGuard: %w", err)
	}
	return d.route(p, false)
}

// remove implements device.
func (d *userspace) remove(p Peer) error {
	if err := d.wireguard.IpcSet(fmt.Sprintf("public_key=%s\nremove=true\n", hex.EncodeToString(p.Keys.WireGuard[:]))); err != nil {
		return fmt.Errorf("tell WireGuard: %w", err)
	}
	for _, cidr := range p.PodCIDRs {
		if err := netlink.RouteDel(&netlink.Route{LinkIndex: d.link.Attrs().Index, Dst: ipNet(cidr)}); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route to %s: %w", cidr, err)
		}
	}
	return nil
}

// setWide implements device.
func (d *userspace) setWide(p Peer, wide bool) {
	if err := d.route(p, wide); err != nil {
		d.log.Warnf("Packets to node %s may be too long, or shorter than they need to be: %v", p.Name, err)
	}
}

// route sets the routes to the pods of a peer.
func (d *userspace) route(p Peer, wide bool) error {
	mtu := narrowMTU
	if wide {
		mtu = MTU
	}
	for _, cidr := range p.PodCIDRs {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: d.link.Attrs().Index, Dst: ipNet(cidr), MTU: mtu, Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("set the route to %s: %w", cidr, err)
		}
	}
	return nil
}

// gone implements device.
func (d *userspace) gone() <-chan struct{} { return d.wireguard.Wait() }

// close implements device.
func (d *userspace) close() { d.wireguard.Close() }

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
