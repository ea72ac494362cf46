package harness

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	bridgeName    = "lan"
	stateParent   = "/var/tmp"
	statePrefix   = "kedge-test-"
	stateLockName = "lock"
)

// gateway is the number of the network's bridge, which is its hosts' default route. The route leads
// nowhere, unless the network is behind NAT.
const gateway = 254

// subnet has the prefixes of a network's addresses, /24 and /64. The number of a host follows.
type subnet struct{ v4, v6 string }

func (s subnet) address(number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprint(s.v4, number))
}

func (s subnet) address6(number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("%s%x", s.v6, number))
}

// Network is an Ethernet with hosts, in a network namespace of its own. It is separate from the
// machine's networks and from other Networks.
type Network struct {
	t T
	// name is unique on the machine; dir is the folder of that name.
	name, dir string
	lock      *os.File
	subnet    subnet
	ns        netns.NsHandle
	handle    *netlink.Handle
	hosts     int
	// outside is the router's address, for a network behind NAT. sites counts the networks
	// behind this one.
	outside netip.Addr
	sites   int
}

// NewNetwork makes a network that is removed when the test ends. It also removes what killed test runs
// have left.
func NewNetwork(t T) *Network {
	t.Helper()
	removeStale(t)
	n := &Network{t: t, name: statePrefix + rand.Text()[:8], subnet: subnet{"172.31.0.", "fd31::"}}
	n.dir = filepath.Join(stateParent, n.name)
	t.Cleanup(n.close)
	if err := n.make(); err != nil {
		t.Fatalf("make network: %v", err)
	}
	return n
}

func (n *Network) make() error {
	if err := os.Mkdir(n.dir, 0o755); err != nil {
		return err
	}
	var err error
	if n.lock, err = os.Create(filepath.Join(n.dir, stateLockName)); err != nil {
		return err
	}
	if err := unix.Flock(int(n.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", n.lock.Name(), err)
	}
	return n.makeBridge()
}

// makeBridge makes the network's namespace with its bridge.
func (n *Network) makeBridge() error {
	var err error
	if n.ns, err = newNetNS(); err != nil {
		return err
	}
	if n.handle, err = netlink.NewHandleAt(n.ns); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make bridge: %w", err)
	}
	if err := n.addAddresses(n.handle, bridge, gateway); err != nil {
		return err
	}
	return n.handle.LinkSetUp(bridge)
}

// newNetNS makes a network namespace that lives while its handle is open.
func newNetNS() (ns netns.NsHandle, err error) {
	err = onOwnThread(func() (err error) {
		ns, err = netns.New()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("make network namespace: %w", err)
	}
	return ns, nil
}

// within runs f in the network namespace ns. f must not start goroutines that use the namespace,
// because they would run outside.
func within(ns netns.NsHandle, f func() error) error {
	return onOwnThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
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

// portName returns the name of the network's end of a host's link.
func portName(number int) string { return fmt.Sprint("host-", number) }

// attach connects the network namespace ns to the network, by an interface called name in ns.
func (n *Network) attach(number int, ns netns.NsHandle, name string) error {
	lan, err := n.handle.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = portName(number)
	attrs.MasterIndex = lan.Attrs().Index
	attrs.Flags |= net.FlagUp
	// The address stays the same after a reboot, because other hosts remember it.
	hardware := net.HardwareAddr{2, 0, 0, 0, 0, byte(number)}
	if err := n.handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(ns), PeerHardwareAddr: hardware}); err != nil {
		return fmt.Errorf("make veth: %w", err)
	}
	handle, err := netlink.NewHandleAt(ns)
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
	for _, via := range []netip.Addr{n.subnet.address(gateway), n.subnet.address6(gateway)} {
		if err := handle.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// detach removes the link of a host that is gone. The kernel would remove it too, at some later time.
func (n *Network) detach(number int) error {
	link, err := n.handle.LinkByName(portName(number))
	if err == nil {
		err = n.handle.LinkDel(link)
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
	for _, text := range []string{n.subnet.address(number).String() + "/24", n.subnet.address6(number).String() + "/64"} {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s: %w", text, err)
		}
	}
	return nil
}

func (n *Network) close() {
	if n.handle != nil {
		n.handle.Close()
	}
	if n.ns > 0 {
		n.ns.Close()
	}
	if n.lock == nil {
		// The outer network removes the rest of a network behind NAT.
		return
	}
	if err := removeState(n.name); err != nil {
		n.t.Logf("remove network: %v", err)
	}
	n.lock.Close()
}

// removeStale removes the state of networks whose test binary is dead.
func removeStale(t T) {
	folders, _ := filepath.Glob(filepath.Join(stateParent, statePrefix+"*"))
	for _, folder := range folders {
		// A network without a lock is just being made.
		lock, err := os.Open(filepath.Join(folder, stateLockName))
		if err != nil {
			continue
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if err := removeState(filepath.Base(folder)); err != nil {
				t.Logf("remove what a killed test run left: %v", err)
			}
		}
		lock.Close()
	}
}

// removeState removes the cgroups, the loop devices and the folder of the network called name. The lock
// goes last, so that an interrupted removal is repeated.
func removeState(name string) error {
	if err := removeCgroups(name); err != nil {
		return err
	}
	dir := filepath.Join(stateParent, name)
	if err := detachLoops(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, entry := range entries {
		if entry.Name() == stateLockName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}
