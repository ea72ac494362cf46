package host

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// listening is a port that this test's process has.
func listening(t *testing.T) (Port, net.Listener) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return Port{Network: "tcp", Address: l.Addr().String(), Use: "the API", Change: "https-listen-port"}, l
}

func TestCheckPorts(t *testing.T) {
	port, l := listening(t)
	own := fmt.Sprintf("process %d", os.Getpid())
	if c := checkPorts(t.Context(), "/", []Port{port}, 0)[0]; c.Result != Fail || !strings.Contains(c.Cost, own) || !strings.Contains(c.Cost, "https-listen-port") {
		t.Errorf("a taken port: %+v", c)
	}
	if c := checkPorts(t.Context(), "/", []Port{port}, os.Getpid())[0]; c.Result != OK || !strings.Contains(c.Detail, "kedge itself") {
		t.Errorf("a port of the kedge that runs: %+v", c)
	}
	if c := checkPorts(t.Context(), "/", []Port{port}, 1)[0]; c.Result != Fail {
		t.Errorf("a port that another process has beside kedge: %+v", c)
	}
	l.Close()
	if c := checkPorts(t.Context(), "/", []Port{port}, 0)[0]; c.Result != OK {
		t.Errorf("a free port: %+v", c)
	}
}

// TestCheckPortsBeforeAStart names all ports that are taken, and no others.
func TestCheckPortsBeforeAStart(t *testing.T) {
	one, _ := listening(t)
	two, _ := listening(t)
	free, l := listening(t)
	l.Close()
	err := CheckPorts(t.Context(), []Port{one, free, two})
	if err == nil || !strings.Contains(err.Error(), one.String()) || !strings.Contains(err.Error(), two.String()) || strings.Contains(err.Error(), free.String()) {
		t.Errorf("got %v", err)
	}
	if err := CheckPorts(t.Context(), []Port{free}); err != nil {
		t.Errorf("a free port: %v", err)
	}
}

// inNamespace runs the test again in a network namespace of its own, and tells whether this is that run.
// A thread of this process that changed its namespace could be the first one, whose /proc/net all threads read.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const inside = "KEDGE_TEST_NAMESPACE"
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if os.Getenv(inside) != "" {
		return true
	}
	again := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), inside+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if output, err := again.CombinedOutput(); err != nil {
		t.Errorf("run the test in a network namespace of its own: %v\n%s", err, output)
	}
	return false
}

// TestVXLANPort has a VXLAN interface, as flannel leaves it when kedge stops.
func TestVXLANPort(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	const number = 8472
	link := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan-test"}, VxlanId: 1, Port: number}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	port := Port{Network: "udp", Address: fmt.Sprint(":", number), Use: "VXLAN"}
	if err := CheckPorts(t.Context(), []Port{port}); err != nil {
		t.Error(err)
	}
	if c := checkPorts(t.Context(), "/", []Port{port}, 0)[0]; c.Result != OK || !strings.Contains(c.Detail, "an interface of this host") {
		t.Errorf("got %+v", c)
	}
}

func TestPortOwner(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, state, inode string) string {
		return "   0: " + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 " + inode + " 1\n"
	}
	root := tree(t, map[string]string{
		"proc/net/tcp":  head + line("0100007F:192B", "0A", "7") + line("0100007F:280B", "01", "8"),
		"proc/net/tcp6": head + line("00000000000000000000000000000000:280A", "0A", "9"),
		"proc/net/udp":  head + line("00000000:2118", "07", "0"),
		"proc/12/comm":  "nginx\n",
		"proc/12/fd/":   "",
	})
	for fd, inode := range map[string]string{"3": "7", "4": "9"} {
		if err := os.Symlink("socket:["+inode+"]", root+"/proc/12/fd/"+fd); err != nil {
			t.Fatal(err)
		}
	}
	nginx := owner{pid: 12, name: "nginx"}
	if nginx.String() != "nginx (process 12)" || (owner{}).String() != "another program" {
		t.Errorf("owners are %q and %q", nginx, owner{})
	}
	for address, want := range map[string]owner{
		"tcp :6443":             nginx,
		"tcp 127.0.0.1:6443":    nginx,
		"tcp 192.0.2.1:6443":    {},
		"tcp :10250":            nginx,
		"tcp 192.0.2.1:10250":   nginx,
		"tcp 127.0.0.1:10251":   {}, // A connection, not a listener.
		"udp :8472":             {kernel: true},
		"udp :53":               {},
		"tcp no address at all": {},
	} {
		network, address, _ := strings.Cut(address, " ")
		if got := portOwner(root, Port{Network: network, Address: address}); got != want {
			t.Errorf("%s %s: got %+v, want %+v", network, address, got, want)
		}
	}
	if !overlaps(netip.MustParseAddr("fd00::1"), "000000FD000000000000000001000000") {
		t.Error("an IPv6 address is not found")
	}
}
