package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Bridge is the name of a network's bridge.
const Bridge = "lan"

// Gateway is the number of the network's bridge, which is its hosts' default route. The route leads
// nowhere, unless somebody makes the network's namespace a router.
const Gateway = 254

// Subnet has the prefixes of a network's addresses, /24 and /64. The number of a host follows. V6 may be
// empty.
type Subnet struct{ V4, V6 string }

// Address returns the IPv4 address of a number.
func (s Subnet) Address(number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprint(s.V4, number))
}

// Address6 returns the IPv6 address of a number.
func (s Subnet) Address6(number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("%s%x", s.V6, number))
}

// addresses returns the addresses of a number.
func (s Subnet) addresses(number int) []netip.Prefix {
	all := []netip.Prefix{netip.PrefixFrom(s.Address(number), 24)}
	if s.V6 != "" {
		all = append(all, netip.PrefixFrom(s.Address6(number), 64))
	}
	return all
}

// Network is an Ethernet with hosts, in a network namespace of its own. It is separate from the machine's
// networks and from other Networks. The kernel removes it when its namespace is closed.
type Network struct {
	Subnet Subnet
	// NS is the namespace with the bridge, and Handle changes it.
	NS     netns.NsHandle
	Handle *netlink.Handle
}

// NewNetwork makes a network without hosts.
func NewNetwork(subnet Subnet) (*Network, error) {
	n := &Network{Subnet: subnet}
	if err := n.make(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Network) make() error {
	err := onOwnThread(func() (err error) {
		n.NS, err = netns.New()
		return err
	})
	if err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	if n.Handle, err = handleAt(n.NS); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Bridge
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.Handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make bridge: %w", err)
	}
	if err := n.addAddresses(n.Handle, bridge, Gateway); err != nil {
		return err
	}
	return n.Handle.LinkSetUp(bridge)
}

// Close gives the network up.
func (n *Network) Close() {
	if n.Handle != nil {
		n.Handle.Close()
	}
	if n.NS > 0 {
		n.NS.Close()
	}
}

// Within runs f in the network namespace ns. f must not start goroutines that use the namespace,
// because they would run outside.
func Within(ns netns.NsHandle, f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// handleAt returns a handle that changes a network namespace. netlink's own function returns to the namespace that the
// thread had before, and in a user namespace the kernel does not let it: the machine's network belongs to others.
func handleAt(ns netns.NsHandle) (handle *netlink.Handle, err error) {
	err = Within(ns, func() error {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return handle, err
}

// onOwnThread runs f on a new thread. The thread is never unlocked, so it ends with f.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Port returns the name of the network's end of a host's link.
func Port(number int) string { return fmt.Sprint("host-", number) }

// Attach connects the network namespace ns to the network, by an interface called name in ns. If route is
// true, the network becomes its default route.
func (n *Network) Attach(number int, ns netns.NsHandle, name string, route bool) error {
	lan, err := n.Handle.LinkByName(Bridge)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Port(number)
	attrs.MasterIndex = lan.Attrs().Index
	attrs.Flags |= net.FlagUp
	// The address stays the same after a reboot, because other hosts remember it.
	hardware := net.HardwareAddr{2, 0, 0, 0, 0, byte(number)}
	if err := n.Handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(ns), PeerHardwareAddr: hardware}); err != nil {
		return fmt.Errorf("make veth: %w", err)
	}
	handle, err := handleAt(ns)
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, name := range []string{"lo", name} {
		link, err := handle.LinkByName(name)
		if err != nil {
			return err
		}
		if err := handle.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		return err
	}
	if err := n.addAddresses(handle, link, number); err != nil {
		return err
	}
	if !route {
		return nil
	}
	for _, via := range n.Subnet.addresses(Gateway) {
		if err := handle.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.Addr().AsSlice()}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// SetGateway makes a number the default route of the network's own namespace.
func (n *Network) SetGateway(number int) error {
	if err := n.Handle.RouteAdd(&netlink.Route{Gw: n.Subnet.Address(number).AsSlice()}); err != nil {
		return fmt.Errorf("add default route of the network: %w", err)
	}
	return nil
}

// Detach removes the link of a host that is gone. The kernel would remove it too, at some later time.
func (n *Network) Detach(number int) error {
	link, err := n.Handle.LinkByName(Port(number))
	if err == nil {
		err = n.Handle.LinkDel(link)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove veth: %w", err)
	}
	return nil
}

// addAddresses adds the addresses of a number. They can be used at once.
func (n *Network) addAddresses(handle *netlink.Handle, link netlink.Link, number int) error {
	for _, prefix := range n.Subnet.addresses(number) {
		address, err := netlink.ParseAddr(prefix.String())
		if err != nil {
			return err
		}
		if prefix.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s: %w", prefix, err)
		}
	}
	return nil
}
