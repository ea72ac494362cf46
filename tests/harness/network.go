package harness

import (
	"crypto/rand"
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

// The network's addresses. Its bridge is the hosts' default route; nothing is
// behind it.
const (
	bridgeName    = "lan"
	gateway       = "172.31.0.254"
	gatewayIPv6   = "fd31::fe"
	hostAddress   = "172.31.0.%d/24"
	hostAddress6  = "fd31::%x/64"
	stateParent   = "/var/tmp"
	statePrefix   = "kedge-test-"
	stateLockName = "lock"
)

// Network is an Ethernet with hosts on it, in a network namespace of its own:
// it meets neither the machine's networks nor another Network.
type Network struct {
	t T
	// name is unique on the machine; dir is the folder of that name.
	name, dir string
	lock      *os.File
	ns        netns.NsHandle
	handle    *netlink.Handle
	hosts     int
}

// NewNetwork makes a network that goes when the test ends. It also removes what
// test runs left that were killed.
func NewNetwork(t T) *Network {
	t.Helper()
	removeStale(t)
	n := &Network{t: t, name: statePrefix + rand.Text()[:8]}
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
	for _, address := range []string{gateway + "/24", gatewayIPv6 + "/64"} {
		if err := addAddress(n.handle, bridge, address); err != nil {
			return err
		}
	}
	return n.handle.LinkSetUp(bridge)
}

// newNetNS makes a network namespace that lives while its handle is open.
func newNetNS() (netns.NsHandle, error) {
	var ns netns.NsHandle
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err = netns.New()
	}()
	<-done
	if err != nil {
		return 0, fmt.Errorf("make network namespace: %w", err)
	}
	return ns, nil
}

// attach joins the host with the network namespace ns to the network.
func (n *Network) attach(number int, ns netns.NsHandle) error {
	lan, err := n.handle.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("host-%d", number)
	attrs.MasterIndex = lan.Attrs().Index
	attrs.Flags |= net.FlagUp
	if err := n.handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}); err != nil {
		return fmt.Errorf("make veth: %w", err)
	}
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := handle.LinkByName(name)
		if err != nil {
			return err
		}
		if err := handle.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	eth0, err := handle.LinkByName("eth0")
	if err != nil {
		return err
	}
	for address, via := range map[string]string{
		fmt.Sprintf(hostAddress, number):  gateway,
		fmt.Sprintf(hostAddress6, number): gatewayIPv6,
	} {
		if err := addAddress(handle, eth0, address); err != nil {
			return err
		}
		if err := handle.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(via)}); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}

// addAddress adds an address that can be used at once.
func addAddress(handle *netlink.Handle, link netlink.Link, text string) error {
	address, err := netlink.ParseAddr(text)
	if err != nil {
		return err
	}
	if netip.MustParsePrefix(text).Addr().Is6() {
		address.Flags = unix.IFA_F_NODAD
	}
	if err := handle.AddrAdd(link, address); err != nil {
		return fmt.Errorf("add address %s: %w", text, err)
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
	if err := removeState(n.name); err != nil {
		n.t.Logf("remove network: %v", err)
	}
	if n.lock != nil {
		n.lock.Close()
	}
}

// removeStale removes the state of networks whose test binary is dead.
func removeStale(t T) {
	folders, _ := filepath.Glob(filepath.Join(stateParent, statePrefix+"*"))
	for _, folder := range folders {
		// One that has no lock yet is just being made.
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

// removeState removes the cgroups and the folder of the network called name.
// The lock goes last: a removal that was interrupted is done again.
func removeState(name string) error {
	if err := removeCgroups(name); err != nil {
		return err
	}
	dir := filepath.Join(stateParent, name)
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
