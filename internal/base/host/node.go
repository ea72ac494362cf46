// Package host prepares and checks the machine that kedge runs on: the node's name and
// addresses, what its kernel can do, the modules and kernel settings that Kubernetes
// needs, and the checks of `kedge check-config`. The server and agent packages call it
// before any component is made.
package host

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// ErrNoRoute is why ResolveNode fails if no node-ip is configured, the host has no default
// route, and it does not have just one network card with an address.
var ErrNoRoute = errors.New("this host has no default route")

// Node is who this machine is in the cluster.
type Node struct {
	Name string
	// IPs are the node's addresses, the primary one first: one, or one of each
	// family.
	IPs []netip.Addr
}

// ResolveNode decides the node's name and addresses: the configured ones, or
// the host's name and the addresses of its default routes, or of its only network card. The addresses are of
// the same families, in the same order, as the ranges of pod addresses.
func ResolveNode(cfg config.Node, podCIDRs []netip.Prefix) (Node, error) {
	name, err := NodeName(cfg)
	if err != nil {
		return Node{}, err
	}
	var ips []netip.Addr
	if len(cfg.NodeIP) > 0 {
		ips, err = configuredIPs(cfg.NodeIP, podCIDRs, localAddresses)
	} else {
		ips, err = defaultIPs(podCIDRs, defaultAddress)
	}
	if err != nil {
		return Node{}, err
	}
	return Node{Name: name, IPs: ips}, nil
}

// NodeName decides the node's name as ResolveNode does.
func NodeName(cfg config.Node) (string, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read host name: %w", err)
	}
	name, err := nodeName(cfg.NodeName, hostname)
	if err != nil || !cfg.WithNodeID {
		return name, err
	}
	id, err := ensureID(datadir.NodeID)
	if err != nil {
		return "", err
	}
	return nodeName(name+"-"+id, hostname)
}

// ensureID returns the ID in a file, and makes it if there is none.
func ensureID(path string) (string, error) {
	text, err := datadir.ReadText(path)
	if id := strings.TrimSpace(string(text)); err == nil && id != "" {
		return id, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the ID of this node: %w", err)
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // it never fails
	id := hex.EncodeToString(random)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("keep the ID of this node: %w", err)
	}
	if err := datadir.WriteFile(path, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("keep the ID of this node: %w", err)
	}
	return id, nil
}

// IsHere tells whether all the node's addresses are the host's at the moment.
func (n Node) IsHere() (bool, error) {
	onHost, err := localAddresses()
	if err != nil {
		return false, err
	}
	for _, ip := range n.IPs {
		if !slices.Contains(onHost, ip) {
			return false, nil
		}
	}
	return true, nil
}

//upstream:relies-on k8s.io/component-helpers/node/util/hostname.go GetHostname
func nodeName(configured, hostname string) (string, error) {
	name, from := configured, "node-name"
	if name == "" {
		name, from = hostname, "the host's name"
	}
	// Upstream's nodeutil.GetHostname: names of nodes are lower case.
	name = strings.ToLower(strings.TrimSpace(name))
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return "", fmt.Errorf("%s %q is not a valid node name: %s. Set another name with --node-name",
			from, name, strings.Join(faults, "; "))
	}
	return name, nil
}

// configuredIPs parses node-ip and refuses what the kubelet would refuse later
// with less to say (validateNodeIP in pkg/kubelet/kubelet_node_status.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go validateNodeIP
func configuredIPs(configured []string, podCIDRs []netip.Prefix, local func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	onHost, err := local()
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, s := range configured {
		ip, err := netip.ParseAddr(s)
		switch {
		case err != nil:
			return nil, fmt.Errorf("node-ip %q is not an IP address", s)
		case !ip.IsGlobalUnicast():
			return nil, fmt.Errorf("other nodes cannot reach node-ip %s: set node-ip to another address of this host", ip)
		case !slices.Contains(onHost, ip.Unmap()):
			return nil, fmt.Errorf("this host has no address %s: set node-ip to one of %v", ip, reachable(onHost))
		}
		ips = append(ips, ip.Unmap())
	}
	// Pods need an address of the node for every family they have.
	var ordered []netip.Addr
	for _, cidr := range podCIDRs {
		i := slices.IndexFunc(ips, func(ip netip.Addr) bool { return ip.Is4() == cidr.Addr().Is4() })
		if i < 0 {
			return nil, fmt.Errorf("node-ip has no %s address, which the range %s of cluster-cidr needs: add an address of that family to node-ip", family(cidr), cidr)
		}
		ordered = append(ordered, ips[i])
	}
	return ordered, nil
}

func defaultIPs(podCIDRs []netip.Prefix, lookup func(ipv6 bool) (netip.Addr, error)) ([]netip.Addr, error) {
	var ips []netip.Addr
	for _, cidr := range podCIDRs {
		ip, err := lookup(cidr.Addr().Is6())
		if err != nil {
			return nil, err
		}
		if !ip.IsValid() {
			return nil, fmt.Errorf("%w for %s, and not just one network card with such an address, so kedge does not know which address is the node's: "+
				"set it with --node-ip", ErrNoRoute, family(cidr))
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

func family(cidr netip.Prefix) string {
	if cidr.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func reachable(ips []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(ips), func(ip netip.Addr) bool { return !ip.IsGlobalUnicast() })
}

// Addresses returns the addresses of this host at which other hosts may reach it.
func Addresses() ([]netip.Addr, error) {
	all, err := localAddresses()
	return reachable(all), err
}

func localAddresses() ([]netip.Addr, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the host: %w", err)
	}
	var ips []netip.Addr
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil {
			ips = append(ips, prefix.Addr())
		}
	}
	return ips, nil
}

// defaultAddress returns the address of a family by which other hosts know this one, or the zero Addr if
// that is not clear. A machine in a network without a router has no default route.
func defaultAddress(ipv6 bool) (netip.Addr, error) {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	ip, err := defaultRouteAddress(family)
	if err != nil || ip.IsValid() {
		return ip, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list interfaces: %w", err)
	}
	return cardAddress(links, func(card netlink.Link) (netip.Addr, error) { return linkAddress(card.Attrs().Index, family) })
}

// cardAddress returns the address of the only network card, or the zero Addr. With several cards, the one that has
// an address at a boot may not be the one that gets the default route later.
func cardAddress(links []netlink.Link, addressOf func(netlink.Link) (netip.Addr, error)) (netip.Addr, error) {
	// A bridge, a tunnel and the like have no device.
	cards := slices.DeleteFunc(slices.Clone(links), func(link netlink.Link) bool { return link.Attrs().ParentDev == "" })
	if len(cards) != 1 {
		return netip.Addr{}, nil
	}
	return addressOf(cards[0])
}

// defaultRouteAddress returns the address of the best default route of a
// family: the route's own source address if it names one, else the first
// address of its interface that others can reach. It is the zero Addr if there
// is none.
func defaultRouteAddress(family int) (netip.Addr, error) {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				return true
			}
		}
		return r.Type != unix.RTN_UNICAST
	})
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	for _, route := range routes {
		if ip, ok := netip.AddrFromSlice(route.Src); ok {
			return ip.Unmap(), nil
		}
		index := route.LinkIndex
		if len(route.MultiPath) > 0 {
			index = route.MultiPath[0].LinkIndex
		}
		ip, err := linkAddress(index, family)
		if err != nil {
			return netip.Addr{}, err
		}
		if ip.IsValid() {
			return ip, nil
		}
	}
	return netip.Addr{}, nil
}

func linkAddress(index, family int) (netip.Addr, error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find interface: %w", err)
	}
	addresses, err := netlink.AddrList(link, family)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	for _, address := range addresses {
		// An address that is going away, or is not proven unique, is no address
		// to be known by. Addresses that kedge announces are deprecated, too
		// (internal/node/announce).
		if address.Flags&unix.IFA_F_DEPRECATED != 0 || address.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_TEMPORARY) != 0 && family == unix.AF_INET6 {
			continue
		}
		ip, ok := netip.AddrFromSlice(address.IP)
		if ok && ip.Unmap().IsGlobalUnicast() {
			return ip.Unmap(), nil
		}
	}
	return netip.Addr{}, nil
}
