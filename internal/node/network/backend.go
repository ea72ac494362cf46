package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/backend/hostgw"
	"github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/backend/wireguard"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/mesh"
)

// WireguardKey is the path of this node's private key. flannel takes it only from the variable
// WIREGUARD_KEY_FILE (pkg/backend/wireguard/device.go). The key may be lost with a reboot: the
// other nodes learn the new public key from the node's annotations.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/device.go wgDeviceAttrs.setupKeys
const WireguardKey = datadir.RunDir + "/wireguard.key"

// ipv6Overhead is the number of bytes by which an IPv6 header is longer than an IPv4 header.
const ipv6Overhead = 20

// registerBackend makes the devices of the chosen backend, and announces this node to the others.
// podCIDRs are this node's.
func (n *Network) registerBackend(ctx context.Context, l *leases, podCIDRs []netip.Prefix, f *fence) (backend.Network, error) {
	iface, err := externalInterface(n.cfg.NodeIPs, n.cfg.ExternalIPs, n.cfg.Interface)
	if err != nil {
		return nil, err
	}
	for _, own := range []net.IP{iface.IfaceAddr, iface.IfaceV6Addr} {
		if address, ok := netip.AddrFromSlice(own); ok {
			l.sources = append(l.sources, address.Unmap())
		}
	}
	if l.config, err = n.podNetwork(podCIDRs, iface); err != nil {
		return nil, err
	}
	name := n.cfg.Cluster.FlannelBackend
	if name == meshBackend {
		if err := removeFormerDevices(nil); err != nil {
			return nil, err
		}
		return n.startMesh(ctx, l, podCIDRs, iface)
	}
	newBackend, err := n.chooseBackend(l.config, iface)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(l, iface)
	if err != nil {
		return nil, fmt.Errorf("make flannel backend %s: %w", name, err)
	}
	if name == wireguardBackend {
		// flannel removes the device when the context is cancelled (pkg/backend/wireguard/device.go).
		// That would cut off the pods, which keep running.
		//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/device.go newWGDevice
		ctx = context.WithoutCancel(ctx)
	}
	var unused sync.WaitGroup // for wireguard's goroutine, which lives as long as the process
	registered, err := b.RegisterNetwork(ctx, &unused, l.config)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("make flannel's device: this kernel has no %s: load the module or choose another flannel-backend, such as host-gw: %w", l.config.BackendType, err)
	}
	if err != nil {
		return nil, fmt.Errorf("set up flannel backend %s: %w", name, err)
	}
	if name == vxlanBackend {
		return &vxlanNetwork{registered, l, f, n.cfg.Cluster.VXLAN.VNI}, nil
	}
	return registered, nil
}

// podNetwork returns flannel's configuration without the backend: the network of all pods. iface
// leads to the other nodes.
func (n *Network) podNetwork(podCIDRs []netip.Prefix, iface *backend.ExternalInterface) (*subnet.Config, error) {
	config := &subnet.Config{}
	for _, cluster := range n.cfg.Cluster.PodCIDRs() {
		inCluster := func(own netip.Prefix) bool {
			return own.Bits() >= cluster.Bits() && cluster.Contains(own.Addr())
		}
		if !slices.ContainsFunc(podCIDRs, inCluster) {
			return nil, fmt.Errorf("node %s has the pod CIDR %v, which is not in cluster-cidr %s: if cluster-cidr was changed, run `kubectl delete node` for this node and restart kedge",
				n.cfg.NodeName, podCIDRs, cluster)
		}
		if cluster.Addr().Is4() {
			config.EnableIPv4, config.Network = true, toIP4Net(cluster)
		} else {
			config.EnableIPv6, config.IPv6Network = true, toIP6Net(cluster)
		}
	}
	if config.EnableIPv4 && iface.ExtAddr == nil || config.EnableIPv6 && iface.ExtV6Addr == nil {
		return nil, fmt.Errorf("cluster-cidr %s needs a node address of each of its address families: node-ip has only %v",
			strings.Join(n.cfg.Cluster.ClusterCIDR, ","), n.cfg.NodeIPs)
	}
	return config, nil
}

// The values of the setting flannel-backend.
const (
	vxlanBackend       = "vxlan"
	hostGatewayBackend = "host-gw"
	wireguardBackend   = "wireguard-native"
	meshBackend        = "mesh"
)

// chooseBackend returns what makes the chosen backend, and puts its settings into config. It removes
// the devices that an earlier start has left with another backend or another VNI.
func (n *Network) chooseBackend(config *subnet.Config, iface *backend.ExternalInterface) (newBackend backend.BackendCtor, err error) {
	settings := maps.Clone(n.cfg.Backend)
	if settings == nil {
		settings = map[string]any{}
	}
	var devices [2]string
	switch n.cfg.Cluster.FlannelBackend {
	case vxlanBackend:
		newBackend, config.BackendType = vxlan.New, "vxlan"
		settings["VNI"], settings["Port"] = n.cfg.Cluster.VXLAN.VNI, n.cfg.Cluster.VXLAN.Port
		devices[0], devices[1] = vxlanDevices(n.cfg.Cluster.VXLAN.VNI)
		//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/vxlan_network.go
		if _, set := settings["MTU"]; config.EnableIPv6 && !set {
			// flannel subtracts the overhead of IPv4 (encapOverhead in
			// pkg/backend/vxlan/vxlan_network.go).
			settings["MTU"] = iface.Iface.MTU - ipv6Overhead
		}
	case hostGatewayBackend:
		newBackend, config.BackendType = hostgw.New, "host-gw"
	case wireguardBackend:
		newBackend, config.BackendType = wireguard.New, "wireguard"
		devices = wireguardDevices
	default:
		return nil, fmt.Errorf("unknown flannel-backend %q", n.cfg.Cluster.FlannelBackend)
	}
	if config.Backend, err = json.Marshal(settings); err != nil {
		return nil, fmt.Errorf("configure flannel backend: %w", err)
	}
	return newBackend, removeFormerDevices(devices[:])
}

// wireguardDevices are the devices that flannel's wireguard backend makes (pkg/backend/wireguard/wireguard.go).
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/wireguard/wireguard.go WireguardBackend.RegisterNetwork
var wireguardDevices = [2]string{"flannel-wg", "flannel-wg-v6"}

// isFlannels tells whether a link is a device of one of flannel's backends.
func isFlannels(link netlink.Link) bool {
	return isVXLAN(link) || slices.Contains(wireguardDevices[:], link.Attrs().Name)
}

// removeFormerDevices removes the devices of flannel's backends except those called current. The fence does not know their
// ports, and their routes lead to other nodes that do not have them any more.
func removeFormerDevices(current []string) error {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		name := link.Attrs().Name
		if !isFlannels(link) || slices.Contains(current, name) {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove interface %s of another backend of flannel: %w", name, err)
		}
	}
	return nil
}

// alignMTU sets the MTU in bytes of the existing bridge and of flannel's devices, which have vni if
// they are of VXLAN. Devices from an
// earlier start keep their MTU, although the link to the other nodes may have changed: see
// ensureLink of flannel's pkg/backend/vxlan/device.go, and ensureBridge of the CNI plugin. Running
// pods learn the new MTU when their packets are forwarded.
//
//upstream:relies-on github.com/flannel-io/flannel/pkg/backend/vxlan/device.go ensureLink
//upstream:relies-on github.com/containernetworking/plugins/plugins/main/bridge/bridge.go ensureBridge
func alignMTU(mtu, vni int) error {
	vxlan, vxlanV6 := vxlanDevices(vni)
	for _, name := range append([]string{BridgeName, vxlan, vxlanV6, mesh.DeviceName}, wireguardDevices[:]...) {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err == nil && link.Attrs().MTU != mtu {
			err = netlink.LinkSetMTU(link, mtu)
		}
		if err != nil {
			return fmt.Errorf("set the MTU of %s: %w", name, err)
		}
	}
	return nil
}

// externalInterface returns the interface that has the node's addresses, or the interface called name
// if that is not empty. The addresses that other nodes use are external in each family that has one.
func externalInterface(nodeIPs, externalIPs []netip.Addr, name string) (*backend.ExternalInterface, error) {
	result := &backend.ExternalInterface{}
	for _, address := range nodeIPs {
		iface, err := interfaceOf(address)
		if name != "" {
			iface, address, err = addressOn(name, address.Is6())
		}
		if err != nil {
			return nil, err
		}
		if result.Iface == nil {
			result.Iface, result.IfaceName = iface, iface.Name
		}
		own := net.IP(address.AsSlice())
		external := own
		if i := slices.IndexFunc(externalIPs, func(ip netip.Addr) bool { return ip.Is4() == address.Is4() }); i >= 0 {
			external = net.IP(externalIPs[i].AsSlice())
		}
		if address.Is4() {
			result.IfaceAddr, result.ExtAddr = own, external
		} else {
			result.IfaceV6Addr, result.ExtV6Addr = own, external
		}
	}
	if result.Iface == nil {
		return nil, errors.New("this node has no address: set node-ip")
	}
	return result, nil
}

// addressOn returns the interface called name, and its first address of the family that other hosts can
// reach.
func addressOn(name string, ipv6 bool) (*net.Interface, netip.Addr, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, netip.Addr{}, fmt.Errorf("flannel-iface %s: %w", name, err)
	}
	addresses, err := iface.Addrs()
	if err != nil {
		return nil, netip.Addr{}, fmt.Errorf("list addresses of %s: %w", name, err)
	}
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Is6() == ipv6 && prefix.Addr().IsGlobalUnicast() {
			return iface, prefix.Addr(), nil
		}
	}
	return nil, netip.Addr{}, fmt.Errorf("flannel-iface %s has no address of one of the address families of cluster-cidr", name)
}

func interfaceOf(address netip.Addr) (*net.Interface, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, iface := range interfaces {
		addresses, err := iface.Addrs()
		if err != nil {
			continue // the interface has just been removed
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == address {
				return &iface, nil
			}
		}
	}
	return nil, fmt.Errorf("no interface has the node's address %s: set node-ip to an address of this host", address)
}
