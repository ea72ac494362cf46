package dns

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// inNetNS runs the calling test again, in a process with a network namespace of its own, because
// goroutines cannot be kept in one namespace. It returns true in that process. If it returns false,
// the test is done.
func inNetNS(t *testing.T) bool {
	t.Helper()
	const variable = "KEDGE_TEST_NETNS"
	if os.Getenv(variable) == t.Name() {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), variable+"="+t.Name())
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	output, err := again.CombinedOutput()
	if err != nil {
		t.Fatalf("run the test in a network namespace of its own: %v\n%s", err, output)
	}
	t.Logf("%s", output)
	return false
}

// peer is a network namespace that is connected to the test's by a veth pair.
type peer struct {
	t  *testing.T
	ns netns.NsHandle
}

// newPeer returns a peer. The test's end of the pair is called name and has no address. The peer's end
// has address and a default route.
func newPeer(t *testing.T, name, address string) *peer {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	ns, err := netns.New()
	must(t, err)
	must(t, netns.Set(home))
	must(t, home.Close())
	p := &peer{t, ns}
	t.Cleanup(func() { ns.Close() })

	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}))
	link, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	p.do(func() {
		eth0, err := netlink.LinkByName("eth0")
		must(t, err)
		parsed, err := netlink.ParseAddr(address)
		must(t, err)
		must(t, netlink.AddrAdd(eth0, parsed))
		must(t, netlink.LinkSetUp(eth0))
		must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
	})
	return p
}

// do runs work in the peer. Sockets that work opens stay there.
func (p *peer) do(work func()) {
	p.t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(p.t, err)
	defer home.Close()
	must(p.t, netns.Set(p.ns))
	defer func() { must(p.t, netns.Set(home)) }()
	work()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addAddress adds an address to an interface of the test's namespace.
func addAddress(t *testing.T, name, address string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	parsed, err := netlink.ParseAddr(address)
	must(t, err)
	must(t, netlink.AddrAdd(link, parsed))
}
