package policy

import (
	"context"
	"errors"
	"fmt"
	"github.com/prometheus/client_golang/prometheus"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

const bridge = "cni0"

// world is a node, which is this process's network namespace, with pods on a bridge and a host
// beside it.
type world struct {
	testing.TB
	policy                *Policy
	node, outside         *party
	one, two, three, four *party
	parties               map[string]*party
	// warned are the Events about pods.
	warned []string
}

// party is somebody who connects and answers.
type party struct {
	t         testing.TB
	name      string
	ns        netns.NsHandle
	four, six netip.Addr
}

// services that every party answers, with TCP and UDP.
var services = []uint16{80, 81, 5000}

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs nft")
	}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		t.Skip("needs br_netfilter in the kernel")
	}
	w := &world{TB: t, parties: map[string]*party{}}
	for _, setting := range []string{
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding",
	} {
		must(t, os.WriteFile("/proc/sys/"+setting, []byte("1"), 0))
	}
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}))
	t.Cleanup(func() {
		link, err := netlink.LinkByName(bridge)
		must(t, err)
		must(t, netlink.LinkDel(link))
		must(t, Cleanup(context.Background()))
	})
	link, err := netlink.LinkByName(bridge)
	must(t, err)
	addAddress(t, link, "10.42.0.1/24")
	addAddress(t, link, "fd42::1/64")
	must(t, netlink.LinkSetUp(link))

	w.outside = w.newParty("outside", "192.0.2.2/24", "2001:db8::2/64", "192.0.2.1", "2001:db8::1")
	link, err = netlink.LinkByName("outside")
	must(t, err)
	addAddress(t, link, "192.0.2.1/24")
	addAddress(t, link, "2001:db8::1/64")
	w.node = &party{t: t, name: "node", four: netip.MustParseAddr("192.0.2.1"), six: netip.MustParseAddr("2001:db8::1")}
	w.parties["node"] = w.node
	for i, pod := range []**party{&w.one, &w.two, &w.three, &w.four} {
		name := fmt.Sprintf("pod%d", i+1)
		*pod = w.newParty(name, fmt.Sprintf("10.42.0.1%d/24", i+1), fmt.Sprintf("fd42::1%d/64", i+1), "10.42.0.1", "fd42::1")
		link, err := netlink.LinkByName(name)
		must(t, err)
		cni0, err := netlink.LinkByName(bridge)
		must(t, err)
		must(t, netlink.LinkSetMaster(link, cni0))
		must(t, netlink.LinkSetHairpin(link, true))
	}
	for _, p := range w.parties {
		p.serve()
	}
	w.policy = w.newPolicy()
	return w
}

// newPolicy returns what a new process would have.
func (w *world) newPolicy() *Policy {
	p := New(Config{
		Metrics:  prometheus.NewRegistry(),
		Policies: func(context.Context, func(netpolicy.Update) error) error { return errors.New("not used") },
		WarnPod: func(_, name, _, reason, message string) {
			w.warned = append(w.warned, fmt.Sprint(name, " ", reason, ": ", message))
		},
		Bridge: bridge, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("fd43::10")},
	})
	p.patience = 50 * time.Millisecond
	return p
}

// newParty returns a namespace with an interface, whose other end is called name and is here.
func (w *world) newParty(name, four, six string, gateways ...string) *party {
	t := w.TB
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(t, err)
	ns, err := netns.New()
	must(t, err)
	must(t, netns.Set(home))
	must(t, home.Close())
	p := &party{t: t, name: name, ns: ns, four: netip.MustParsePrefix(four).Addr(), six: netip.MustParsePrefix(six).Addr()}
	w.parties[name] = p
	t.Cleanup(func() { ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}))
	link, err := netlink.LinkByName(name)
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	must(t, netlink.LinkSetUp(link))
	p.do(func() {
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetUp(lo))
		eth0, err := netlink.LinkByName("eth0")
		must(t, err)
		// The kernel would look for others with a link-local address first.
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/eth0/accept_dad", []byte("0"), 0))
		addAddress(t, eth0, four)
		addAddress(t, eth0, six)
		must(t, netlink.LinkSetUp(eth0))
		for _, gateway := range gateways {
			must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(gateway)}))
		}
	})
	return p
}

func addAddress(t testing.TB, link netlink.Link, address string) {
	t.Helper()
	parsed, err := netlink.ParseAddr(address)
	must(t, err)
	if parsed.IP.To4() == nil {
		parsed.Flags = 0x02 // IFA_F_NODAD
	}
	must(t, netlink.AddrAdd(link, parsed))
}

// do runs work in the party's namespace. Sockets that work opens stay there.
func (p *party) do(work func()) {
	p.t.Helper()
	if p.ns == 0 {
		work()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	must(p.t, err)
	defer home.Close()
	must(p.t, netns.Set(p.ns))
	defer func() { must(p.t, netns.Set(home)) }()
	work()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// serve answers with the party's name.
func (p *party) serve() {
	for _, port := range append([]uint16{10053}, services...) {
		p.do(func() {
			for _, address := range []netip.Addr{p.four, p.six} {
				at := netip.AddrPortFrom(address, port).String()
				listener, err := net.Listen("tcp", at)
				must(p.t, err)
				p.t.Cleanup(func() { listener.Close() })
				go func() {
					for {
						conn, err := listener.Accept()
						if err != nil {
							return
						}
						go func() { _, _ = io.Copy(conn, conn); conn.Close() }()
					}
				}()
				packets, err := net.ListenPacket("udp", at)
				must(p.t, err)
				p.t.Cleanup(func() { packets.Close() })
				go func() {
					for {
						buffer := make([]byte, 64)
						n, from, err := packets.ReadFrom(buffer)
						if err != nil {
							return
						}
						_, _ = packets.WriteTo(buffer[:n], from)
					}
				}()
			}
		})
	}
}

// dial returns a connection to an address, or nil if there is none within patience.
func (p *party) dial(network string, to netip.AddrPort, patience time.Duration) (conn net.Conn) {
	p.do(func() {
		var err error
		if conn, err = net.DialTimeout(network, to.String(), patience); err != nil {
			conn = nil
		}
	})
	return conn
}

// echoes tells whether an answer comes back on a connection within patience.
func echoes(conn net.Conn, patience time.Duration) bool {
	if conn == nil {
		return false
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	for deadline := time.Now().Add(patience); ; {
		if _, err := conn.Write([]byte("hello")); err != nil {
			return false
		}
		buffer := make([]byte, 5)
		if _, err := io.ReadFull(conn, buffer); err == nil {
			return string(buffer) == "hello"
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// How long something may take that should work, and how long something is tried that should not.
const (
	longEnough  = 10 * time.Second
	shortEnough = 75 * time.Millisecond
)

func patienceFor(want bool) time.Duration {
	if want {
		return longEnough
	}
	return shortEnough
}

// reaches checks whether a party gets an answer from another.
func (w *world) reaches(from *party, network string, to netip.AddrPort, want bool) {
	w.Helper()
	conn := from.dial(network, to, patienceFor(want))
	if conn != nil {
		defer conn.Close()
	}
	if got := echoes(conn, patienceFor(want)); got != want {
		w.Errorf("%s reaches %s by %s: %t, want %t", from.name, to, network, got, want)
		if want {
			w.Logf("%s", testutil.Command(w.TB, "nft list ruleset"))
		}
	}
}

// pings checks whether a party gets an answer to a ping.
func (w *world) pings(from *party, to netip.Addr, want bool) {
	w.Helper()
	network, protocol := "ip4:icmp", 1
	var kind, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, protocol, kind, reply = "ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	from.do(func() {
		var err error
		conn, err = icmp.ListenPacket(network, "")
		must(w.TB, err)
	})
	defer conn.Close()
	message, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: 1, Data: []byte("ping")}}).Marshal(nil)
	must(w.TB, err)
	_, err = conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice()})
	must(w.TB, err)
	_ = conn.SetReadDeadline(time.Now().Add(patienceFor(want)))
	got := false
	for buffer := make([]byte, 1500); !got; {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			break
		}
		parsed, err := icmp.ParseMessage(protocol, buffer[:n])
		got = err == nil && parsed.Type == reply
	}
	if got != want {
		w.Errorf("%s pings %s: %t, want %t", from.name, to, got, want)
	}
}

// send sends one UDP packet.
func send(t testing.TB, to string) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	must(t, err)
}

// sandbox returns a party as the kubelet tells of it.
func (p *party) sandbox() netpolicy.Sandbox {
	return netpolicy.Sandbox{ID: "sandbox-" + p.name, Namespace: "ns", Name: p.name, UID: "uid-" + p.name, Addresses: []netip.Addr{p.four, p.six}}
}

// pod returns a party as a server tells of it.
func (p *party) pod(ingress, egress string) *netpolicy.Pod {
	return &netpolicy.Pod{UID: "uid-" + p.name, Ingress: ingress, Egress: egress}
}

func (p *party) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.four, port) }

func (p *party) at6(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.six, port) }

// start tells a policy about all pods.
func (w *world) start(update netpolicy.Update) {
	w.Helper()
	update.Whole, update.Active = true, true
	must(w.TB, w.policy.apply(w.Context(), update))
	w.policy.Running(w.Context(), []netpolicy.Sandbox{w.one.sandbox(), w.two.sandbox(), w.three.sandbox(), w.four.sandbox()})
	if w.policy.kernel == nil {
		w.Fatal("the rules could not be written")
	}
}

func (w *world) change(update netpolicy.Update) {
	w.Helper()
	update.Active = true
	replaced := w.policy.kernel
	must(w.TB, w.policy.apply(w.Context(), update))
	if w.policy.kernel != replaced {
		w.Error("the table was replaced, want a change of it")
	}
}

// group returns a group that allows what rules allow.
func groupOf(rules ...netpolicy.Rule) *netpolicy.Group {
	return &netpolicy.Group{Policies: []string{"ns/policy"}, Rules: rules}
}

func tcp(first, last uint16) netpolicy.Ports {
	return netpolicy.Ports{Protocol: 6, First: first, Last: last}
}

func udp(first, last uint16) netpolicy.Ports {
	return netpolicy.Ports{Protocol: 17, First: first, Last: last}
}

func addresses(parties ...*party) *netpolicy.Change {
	change := &netpolicy.Change{}
	for _, p := range parties {
		change.Add = append(change.Add, p.four, p.six)
	}
	return change
}

func ruleset(t testing.TB) string { return strings.TrimSpace(testutil.Command(t, "nft list ruleset")) }
