package policy

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// TestIngress protects pod1: all ports for pod2, some for pod3 and for a part of the network outside.
func TestIngress(t *testing.T) {
	w := newWorld(t)
	w.start(netpolicy.Update{
		Sets: map[string]*netpolicy.Change{"two": addresses(w.two), "three": addresses(w.three)},
		Groups: map[string]*netpolicy.Group{"G": groupOf(
			netpolicy.Rule{Sets: []string{"two"}},
			netpolicy.Rule{Sets: []string{"three"}, Ports: []netpolicy.Ports{tcp(80, 80), udp(4000, 5000)}},
			netpolicy.Rule{Blocks: []netpolicy.Block{{CIDR: netip.MustParsePrefix("192.0.2.0/24")}, {CIDR: netip.MustParsePrefix("2001:db8::/32")}}, Ports: []netpolicy.Ports{tcp(81, 81)}},
		)},
		Pods: map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("G", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", "")},
	})
	for _, to := range []func(uint16) netip.AddrPort{w.one.at, w.one.at6} {
		for _, port := range services {
			for _, network := range []string{"tcp", "udp"} {
				w.reaches(w.two, network, to(port), true)
				w.reaches(w.three, network, to(port), network == "tcp" && port == 80 || network == "udp" && port == 5000)
				w.reaches(w.four, network, to(port), false)
				w.reaches(w.outside, network, to(port), network == "tcp" && port == 81)
				w.reaches(w.node, network, to(port), true) // probes
			}
		}
		address := to(0).Addr()
		w.pings(w.two, address, true)
		w.pings(w.three, address, false)
		w.pings(w.node, address, true)
	}
	// Egress of the pod is free, and so are the answers.
	for _, to := range []netip.AddrPort{w.four.at(80), w.four.at6(80), w.outside.at(80), w.outside.at6(80), w.node.at(80), w.node.at6(80)} {
		w.reaches(w.one, "tcp", to, true)
		w.reaches(w.one, "udp", to, true)
	}
	w.pings(w.one, w.four.four, true)
	// Other pods are not isolated.
	w.reaches(w.four, "tcp", w.three.at(80), true)
	w.reaches(w.outside, "tcp", w.three.at6(80), true)
}

// TestEgress forbids most of what pod1 may connect to.
func TestEgress(t *testing.T) {
	w := newWorld(t)
	w.start(netpolicy.Update{
		Sets: map[string]*netpolicy.Change{"two": addresses(w.two)},
		Groups: map[string]*netpolicy.Group{"G": groupOf(
			netpolicy.Rule{Anybody: true, Ports: []netpolicy.Ports{tcp(81, 90), udp(9999, 9999)}},
			netpolicy.Rule{Sets: []string{"two"}, Ports: []netpolicy.Ports{udp(80, 80)}},
			netpolicy.Rule{Blocks: []netpolicy.Block{{CIDR: netip.MustParsePrefix("192.0.2.0/24"), Except: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}}},
		)},
		Pods: map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("", "G"), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", "")},
	})
	for _, to := range []*party{w.two, w.three, w.node, w.outside} {
		w.reaches(w.one, "tcp", to.at(81), true)
		w.reaches(w.one, "tcp", to.at6(81), true)
		w.reaches(w.one, "tcp", to.at(80), to == w.outside)
		w.reaches(w.one, "tcp", to.at6(80), false)
		w.reaches(w.one, "udp", to.at(80), to == w.two || to == w.outside)
		w.reaches(w.one, "udp", to.at6(80), to == w.two)
		w.pings(w.one, to.four, to == w.outside)
		w.pings(w.one, to.six, false)
	}
	// An ICMP error belongs to the connection that it is about.
	for _, to := range []netip.AddrPort{w.outside.at(9999), w.outside.at6(9999), w.three.at(9999)} {
		conn := w.one.dial("udp", to, longEnough)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(longEnough))
		_, err := conn.Write([]byte("hello"))
		must(t, err)
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("reading from %s: %v, want a refusal", to, err)
		}
	}
	// Ingress is free, and so are the answers.
	for _, from := range []*party{w.two, w.node, w.outside} {
		w.reaches(from, "tcp", w.one.at(80), true)
		w.reaches(from, "tcp", w.one.at6(80), true)
		w.reaches(from, "udp", w.one.at(80), true)
		w.pings(from, w.one.four, true)
		w.pings(from, w.one.six, true)
	}
}

// TestEstablished changes policies under open connections.
func TestEstablished(t *testing.T) {
	w := newWorld(t)
	w.start(netpolicy.Update{
		Sets:   map[string]*netpolicy.Change{"peers": addresses(w.two, w.three)},
		Groups: map[string]*netpolicy.Group{"G": groupOf(netpolicy.Rule{Sets: []string{"peers"}, Ports: []netpolicy.Ports{tcp(80, 80), udp(80, 80)}})},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("G", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", "")},
	})
	type link struct {
		from *party
		conn net.Conn
	}
	var links []link
	for _, from := range []*party{w.two, w.three} {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range []netip.AddrPort{w.one.at(80), w.one.at6(80)} {
				conn := from.dial(network, to, longEnough)
				if !echoes(conn, longEnough) {
					t.Fatalf("%s cannot reach %s by %s", from.name, to, network)
				}
				defer conn.Close()
				links = append(links, link{from, conn})
			}
		}
	}
	check := func(open ...*party) {
		t.Helper()
		for _, l := range links {
			want := false
			for _, from := range open {
				want = want || from == l.from
			}
			if got := echoes(l.conn, patienceFor(want)); got != want {
				t.Errorf("the connection of %s to %s is open: %t, want %t", l.from.name, l.conn.RemoteAddr(), got, want)
			}
		}
	}
	// pod3 leaves the set, then pod1 gets another group, then none.
	w.change(netpolicy.Update{Sets: map[string]*netpolicy.Change{"peers": {Remove: []netip.Addr{w.three.four, w.three.six}}}})
	check(w.two)
	w.change(netpolicy.Update{
		Sets:   map[string]*netpolicy.Change{"third": addresses(w.three)},
		Groups: map[string]*netpolicy.Group{"G": nil, "H": groupOf(netpolicy.Rule{Sets: []string{"third"}})},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("H", "")},
	})
	if stale := w.policy.kernel.stale; len(stale) > 0 {
		t.Logf("this kernel keeps what is unused for a while: %v", stale)
	} else if rules := ruleset(t); strings.Contains(rules, "-G") {
		t.Errorf("rules of a group that is gone:\n%s", rules)
	}
	for _, l := range links {
		if l.from == w.three && !echoes(l.conn, longEnough) {
			t.Errorf("the connection of %s to %s did not continue", l.from.name, l.conn.RemoteAddr())
		}
	}
	must(t, w.policy.apply(t.Context(), netpolicy.Update{Active: false}))
	check(w.two, w.three)
	if rules := ruleset(t); rules != "" {
		t.Errorf("without policies there is\n%s", rules)
	}
}

// TestServices connects through a proxy: to another pod, to itself, and to the cluster's DNS.
func TestServices(t *testing.T) {
	w := newWorld(t)
	t.Cleanup(func() { testutil.Command(t, "nft delete table inet services") })
	for _, command := range []string{
		"nft add table inet services", "nft add chain inet services in { type nat hook prerouting priority dstnat ; }",
		"nft add rule inet services in ip daddr 10.43.0.80 tcp dport 8000 dnat ip to 10.42.0.11:80",
		"nft add rule inet services in ip6 daddr fd43::80 tcp dport 8000 dnat ip6 to [fd42::11]:80",
		"nft add chain inet services out { type nat hook postrouting priority srcnat ; }",
		"nft add rule inet services out ip saddr 10.42.0.11 ip daddr 10.42.0.11 masquerade",
		"nft add rule inet services out ip6 saddr fd42::11 ip6 daddr fd42::11 masquerade",
		"nft add rule inet services in ip daddr 10.43.0.10 udp dport 53 dnat ip to 192.0.2.1:10053",
		"nft add rule inet services in ip daddr 10.43.0.10 tcp dport 53 dnat ip to 192.0.2.1:10053",
		"nft add rule inet services in ip6 daddr fd43::10 udp dport 53 dnat ip6 to [2001:db8::1]:10053",
	} {
		testutil.Command(t, command)
	}
	dns := &netpolicy.Change{Add: []netip.Addr{netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("fd43::10")}}
	w.start(netpolicy.Update{
		Sets: map[string]*netpolicy.Change{"one": addresses(w.one), "two": addresses(w.two), "dns": dns},
		Groups: map[string]*netpolicy.Group{
			"NOTHING": groupOf(),
			"TO":      groupOf(netpolicy.Rule{Sets: []string{"one"}, Ports: []netpolicy.Ports{tcp(80, 80)}}, netpolicy.Rule{Sets: []string{"dns"}, Ports: []netpolicy.Ports{udp(53, 53)}}),
			"FROM":    groupOf(netpolicy.Rule{Sets: []string{"two"}}),
			// The node's address does not stand for the DNS behind it.
			"NODE": groupOf(netpolicy.Rule{Blocks: []netpolicy.Block{{CIDR: netip.MustParsePrefix("192.0.2.1/32")}}}),
		},
		Pods: map[string]*netpolicy.Pod{
			"ns/pod1": w.one.pod("FROM", "NOTHING"), "ns/pod2": w.two.pod("", "TO"), "ns/pod3": w.three.pod("", "NOTHING"), "ns/pod4": w.four.pod("", "NODE"),
		},
	})
	service, service6 := netip.MustParseAddrPort("10.43.0.80:8000"), netip.MustParseAddrPort("[fd43::80]:8000")
	w.reaches(w.two, "tcp", service, true)
	w.reaches(w.two, "tcp", service6, true)
	w.reaches(w.one, "tcp", service, true) // itself
	w.reaches(w.one, "tcp", service6, true)
	w.reaches(w.three, "tcp", service, false)
	w.reaches(w.outside, "tcp", service, false)

	name, name6 := netip.MustParseAddrPort("10.43.0.10:53"), netip.MustParseAddrPort("[fd43::10]:53")
	w.reaches(w.two, "udp", name, true)
	w.reaches(w.two, "udp", name6, true)
	w.reaches(w.two, "tcp", name, false)
	w.reaches(w.three, "udp", name, false)
	w.reaches(w.four, "udp", name, false)
	w.reaches(w.four, "udp", w.node.at(10053), true)
	w.reaches(w.outside, "udp", name, true)
}

// TestLinkLocal wants that pods do not reach each other beside their addresses.
func TestLinkLocal(t *testing.T) {
	w := newWorld(t)
	local := func(p *party) (address netip.Addr) {
		p.do(func() {
			// The kernel makes it some time after the link is up.
			for deadline := time.Now().Add(longEnough); !address.IsValid() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
				eth0, err := net.InterfaceByName("eth0")
				must(t, err)
				all, err := eth0.Addrs()
				must(t, err)
				for _, a := range all {
					if prefix := netip.MustParsePrefix(a.String()); prefix.Addr().IsLinkLocalUnicast() {
						address = prefix.Addr().WithZone("eth0")
					}
				}
			}
			listener, err := net.Listen("tcp", netip.AddrPortFrom(address, 80).String())
			must(t, err)
			t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						buffer := make([]byte, 5)
						_, _ = conn.Read(buffer)
						_, _ = conn.Write(buffer)
						conn.Close()
					}()
				}
			}()
		})
		return address
	}
	to := netip.AddrPortFrom(local(w.one), 80)
	var packets net.PacketConn
	w.one.do(func() {
		var err error
		packets, err = net.ListenPacket("udp4", ":7000")
		must(t, err)
	})
	defer packets.Close()
	broadcast := func(text string) {
		w.two.do(func() {
			for _, to := range []string{"255.255.255.255:7000", "10.42.0.255:7000"} {
				conn, err := net.Dial("udp4", to)
				must(t, err)
				defer conn.Close()
				_, err = conn.Write([]byte(text))
				must(t, err)
			}
		})
	}
	receive := func() string {
		buffer := make([]byte, 64)
		n, _, err := packets.ReadFrom(buffer)
		must(t, err)
		return string(buffer[:n])
	}

	w.reaches(w.two, "tcp", to, true)
	broadcast("before")
	for range 2 {
		if got := receive(); got != "before" {
			t.Errorf("received %q", got)
		}
	}
	w.start(netpolicy.Update{
		Groups: map[string]*netpolicy.Group{"NOTHING": groupOf()},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("NOTHING", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", "")},
	})
	w.reaches(w.two, "tcp", to, false)
	broadcast("isolated")
	// Packets of the node pass. They are later than the broadcasts, so those are lost.
	conn, err := net.Dial("udp4", w.one.at(7000).String())
	must(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("node"))
	must(t, err)
	if got := receive(); got != "node" {
		t.Errorf("received %q", got)
	}
}

// TestSCTP sends the first packet of SCTP connections. The kernel may have no SCTP, but it tracks it.
func TestSCTP(t *testing.T) {
	w := newWorld(t)
	sctp := netpolicy.Ports{Protocol: 132, First: 80, Last: 80}
	w.start(netpolicy.Update{
		Sets:   map[string]*netpolicy.Change{"two": addresses(w.two)},
		Groups: map[string]*netpolicy.Group{"G": groupOf(netpolicy.Rule{Sets: []string{"two"}, Ports: []netpolicy.Ports{sctp, tcp(81, 81)}})},
		Pods:   map[string]*netpolicy.Pod{"ns/pod1": w.one.pod("G", ""), "ns/pod2": w.two.pod("", ""), "ns/pod3": w.three.pod("", ""), "ns/pod4": w.four.pod("", "")},
	})
	var received net.PacketConn
	w.one.do(func() {
		var err error
		received, err = net.ListenPacket("ip4:132", w.one.four.String())
		must(t, err)
	})
	defer received.Close()
	send := func(from *party, port uint16) {
		// INIT: ports, no tag, the sum, and one chunk (RFC 9260, section 3.3.2).
		packet := binary.BigEndian.AppendUint16(nil, 4000)
		packet = binary.BigEndian.AppendUint16(packet, port)
		packet = append(packet, 0, 0, 0, 0, 0, 0, 0, 0)
		packet = append(packet, 1, 0, 0, 20, 1, 2, 3, byte(port), 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1)
		binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
		from.do(func() {
			conn, err := net.Dial("ip4:132", w.one.four.String())
			must(t, err)
			defer conn.Close()
			_, err = conn.Write(packet)
			must(t, err)
		})
	}
	// Packets stay in order, so what has not arrived before the last one never will.
	send(w.three, 80)
	send(w.two, 81)
	send(w.two, 80)
	_ = received.SetDeadline(time.Now().Add(longEnough))
	buffer := make([]byte, 100)
	n, from, err := received.ReadFrom(buffer)
	must(t, err)
	if from.String() != w.two.four.String() || binary.BigEndian.Uint16(buffer[2:n]) != 80 {
		t.Errorf("received % x from %s, want the packet of pod2 to port 80", buffer[:n], from)
	}
}
