package mesh

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

// pair makes two nodes behind NATs of these kinds, and a server.
func (i *internet) pair(ctx context.Context, t *testing.T, a, b natKind) (one, two *simHost, s *simServer) {
	t.Helper()
	s = i.newServer(t, "198.51.100.1")
	one = i.newNode(ctx, t, "one", a, i.newNAT(a, "203.0.113.1"), privateOr(a, "192.168.1.5", "203.0.113.1"), s)
	two = i.newNode(ctx, t, "two", b, i.newNAT(b, "203.0.113.2"), privateOr(b, "192.168.2.5", "203.0.113.2"), s)
	synctest.Wait()
	know(t, one, two)
	return one, two, s
}

// cut lets nothing pass between two addresses, or lets it pass again.
func (i *internet) cut(a, b string, broken bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	from, to := netip.MustParseAddr(a), netip.MustParseAddr(b)
	i.broken[[2]netip.Addr{from, to}], i.broken[[2]netip.Addr{to, from}] = broken, broken
}

// want fails the test if a node does not reach another one by a way within ten seconds. Both nodes must be talking.
func (h *simHost) want(to *simHost, way string) {
	h.t.Helper()
	for range 20 {
		if h.way(to) == way {
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	h.t.Errorf("the way from %s to %s is %s, want %s", h.mesh.cfg.NodeName, to.mesh.cfg.NodeName, h.way(to), way)
}

// converse lets two nodes talk for a while.
func converse(ctx context.Context, one, two *simHost, duration time.Duration) {
	go one.talk(ctx, two, duration)
	go two.talk(ctx, one, duration)
}

// TestQuiet wants no packet between nodes that do not talk, before and after.
func TestQuiet(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, _ := i.pair(ctx, t, portRestricted, portRestricted)
		silent := func() {
			t.Helper()
			i.mu.Lock()
			before := i.sent
			i.mu.Unlock()
			time.Sleep(10 * time.Minute)
			i.mu.Lock()
			defer i.mu.Unlock()
			if i.sent != before {
				t.Errorf("%d packets were sent while nobody talked", i.sent-before)
			}
		}
		silent()
		converse(ctx, one, two, 10*time.Second)
		one.want(two, "direct")
		time.Sleep(2*quietAfter + 20*time.Second)
		silent()
	})
}

// TestWayDies replaces a way that dies, and takes it again when it is back.
func TestWayDies(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, _ := i.pair(ctx, t, portRestricted, noNAT)
		converse(ctx, one, two, 5*time.Minute)
		one.want(two, "direct")
		two.want(one, "direct")
		i.cut("203.0.113.1", "203.0.113.2", true)
		one.want(two, "by a server")
		two.want(one, "by a server")
		i.cut("203.0.113.1", "203.0.113.2", false)
		time.Sleep(searchAgain)
		one.want(two, "direct")
		two.want(one, "direct")
	})
}

// TestRelayDies replaces the Relay of a server that dies, with its streams or before those, by that of another server.
func TestRelayDies(t *testing.T) {
	for _, streams := range []bool{true, false} {
		run(t, func(ctx context.Context, t *testing.T, i *internet) {
			one, two, first := i.pair(ctx, t, symmetric, symmetric)
			converse(ctx, one, two, 5*time.Minute)
			one.want(two, "by a server")
			second := i.newServer(t, "198.51.100.3")
			one.connect(ctx, second)
			two.connect(ctx, second)
			// Node one knows a third server, which does not know node two.
			one.connect(ctx, i.newServer(t, "198.51.100.2"))
			time.Sleep(time.Minute)
			if one.server(two) == second.relay {
				first, second = second, first
			}
			i.mu.Lock()
			delete(i.hosts, first.address)
			i.mu.Unlock()
			if streams {
				one.closers[first]()
				two.closers[first]()
			} else {
				first.silent.Store(true)
			}
			time.Sleep(10 * time.Second)
			one.want(two, "by a server")
			if one.server(two) != second.relay {
				t.Error("node one does not use the other server")
			}
		})
	}
}

// server returns the Relay of the way to a node.
func (h *simHost) server(to *simHost) *mesh.Relay {
	h.mesh.mu.Lock()
	defer h.mesh.mu.Unlock()
	if w := h.mesh.peers[to.mesh.id].current; w != nil && w.link != nil {
		return h.relays[w.link.Server]
	}
	return nil
}

// TestRoaming keeps the way while a node gets another address.
func TestRoaming(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, _ := i.pair(ctx, t, portRestricted, portRestricted)
		converse(ctx, one, two, 5*time.Minute)
		one.want(two, "direct")
		two.want(one, "direct")
		// The NAT of node one gets another address, and forgets all connections.
		i.mu.Lock()
		old := one.nat
		delete(i.nats, old.public)
		i.mu.Unlock()
		renewed := i.newNAT(portRestricted, "203.0.113.9")
		i.mu.Lock()
		renewed.inside = old.inside
		one.nat = renewed
		i.mu.Unlock()
		time.Sleep(10 * time.Second)
		one.want(two, "direct")
		two.want(one, "direct")
		if address := two.address0(one); address.Addr() != renewed.public {
			t.Errorf("node two reaches node one at %s", address)
		}
	})
}

// address0 returns the address at which a node is reached.
func (h *simHost) address0(to *simHost) netip.AddrPort {
	h.mesh.mu.Lock()
	defer h.mesh.mu.Unlock()
	if w := h.mesh.peers[to.mesh.id].current; w != nil {
		return w.address
	}
	return netip.AddrPort{}
}

// TestWidth follows how long packets may be.
func TestWidth(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, _ := i.pair(ctx, t, portRestricted, symmetric)
		converse(ctx, one, two, 5*time.Minute)
		for _, longest := range []int{0, 1400, 0} {
			i.mu.Lock()
			i.longest = longest
			i.mu.Unlock()
			time.Sleep(2 * widthEvery)
			for _, h := range []*simHost{one, two} {
				want := narrowMTU
				if longest == 0 {
					want = MTU
				}
				if ways := h.mesh.Ways(); len(ways) != 1 || ways[0].MTU != want {
					t.Errorf("while packets of %d bytes pass: %+v", longest, ways)
				}
			}
		}
	})
}

// TestSameSite lets two nodes behind the same NAT meet in their own network.
func TestSameSite(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		s := i.newServer(t, "198.51.100.1")
		n := i.newNAT(symmetric, "203.0.113.1")
		one := i.newNode(ctx, t, "one", symmetric, n, "192.168.1.5", s)
		two := i.newNode(ctx, t, "two", symmetric, n, "192.168.1.6", s)
		synctest.Wait()
		know(t, one, two)
		converse(ctx, one, two, time.Minute)
		one.want(two, "direct")
		if got := one.address0(two).Addr(); got != two.address {
			t.Errorf("node two is reached at %s", got)
		}
	})
}

// TestNoServer lets nodes that reach each other talk while no server is there.
func TestNoServer(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one := i.newNode(ctx, t, "one", noNAT, nil, "203.0.113.1")
		two := i.newNode(ctx, t, "two", noNAT, nil, "203.0.113.2")
		know(t, one, two)
		converse(ctx, one, two, time.Minute)
		one.want(two, "direct")
		two.want(one, "direct")
	})
}

// TestAttacks sends what somebody may send who is no node, or a node that was captured.
func TestAttacks(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, s := i.pair(ctx, t, noNAT, noNAT)
		three := i.newNode(ctx, t, "three", noNAT, nil, "203.0.113.3", s)
		synctest.Wait()
		know(t, one, two, three)
		converse(ctx, one, two, 20*time.Minute)
		one.want(two, "direct")
		evil := netip.MustParseAddrPort("203.0.113.66:51820")
		attacker := &simHost{t: t, net: i, address: evil.Addr(), packet: func(_ netip.AddrPort, packet []byte) {
			t.Errorf("the attacker gets a packet of %d bytes", len(packet))
		}}
		i.mu.Lock()
		i.hosts[evil.Addr()] = attacker
		i.mu.Unlock()
		to := netip.AddrPortFrom(one.address, mesh.DefaultPort)
		key := one.mesh.peers[two.mesh.id].shared
		foreign := one.mesh.peers[three.mesh.id].shared
		// A knock with the key of another node.
		knock := mesh.Knock{Message: mesh.Ping, Number: 1 << 62}
		attacker.send(to, knock.Seal(two.mesh.id, foreign))
		knock = mesh.Knock{Message: mesh.Call, Number: 1 << 62, Addresses: []netip.AddrPort{evil}}
		attacker.send(to, knock.Seal(two.mesh.id, foreign))
		// A knock of a node that is none.
		knock = mesh.Knock{Message: mesh.Ping, Number: 1}
		attacker.send(to, knock.Seal(mesh.IDOf("nobody"), key))
		// Packets of any content.
		for n := range 100 {
			packet := make([]byte, n)
			for i := range packet {
				packet[i] = byte(n * i)
			}
			if n > 1 {
				packet[0], packet[1] = 'k', byte(n%8)
			}
			attacker.send(to, packet)
			attacker.send(netip.AddrPortFrom(s.address, mesh.DefaultPort), packet)
		}
		// A datagram through the Relay without a session.
		attacker.send(netip.AddrPortFrom(s.address, mesh.DefaultPort), mesh.Wrap(mesh.KindSend, one.mesh.id, []byte("datagram")))
		time.Sleep(time.Minute)
		if got := one.address0(two); got.Addr() != two.address {
			t.Errorf("node two is reached at %s", got)
		}
	})
}

// TestOldCall ignores a call that somebody sends again.
func TestOldCall(t *testing.T) {
	run(t, func(ctx context.Context, t *testing.T, i *internet) {
		one, two, _ := i.pair(ctx, t, noNAT, noNAT)
		key := one.mesh.peers[two.mesh.id].shared
		old := netip.MustParseAddrPort("203.0.113.77:1")
		call := mesh.Knock{Message: mesh.Call, Number: 5, Addresses: []netip.AddrPort{old}}
		newer := mesh.Knock{Message: mesh.Call, Number: 6}
		one.mesh.knocked(netip.AddrPort{}, nil, newer.Seal(two.mesh.id, key))
		one.mesh.knocked(netip.AddrPort{}, nil, call.Seal(two.mesh.id, key))
		one.mesh.mu.Lock()
		defer one.mesh.mu.Unlock()
		if called := one.mesh.peers[two.mesh.id].called; slices.Contains(called, old) {
			t.Errorf("node two is expected at %v", called)
		}
	})
}

// TestAllowed keeps knocks from addresses at which no node can be.
func TestAllowed(t *testing.T) {
	m := &Mesh{cfg: Config{Reserved: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42::/56")}}}
	for text, want := range map[string]bool{
		"203.0.113.5:51820": true, "192.168.1.1:7": true, "[2001:db8::1]:51820": true,
		"127.0.0.1:51820": false, "0.0.0.0:51820": false, "169.254.169.254:80": false, "224.0.0.1:51820": false, "10.42.3.4:51820": false,
		"[::1]:51820": false, "[fe80::1]:51820": false, "[ff02::1]:51820": false, "[fd00:42::7]:51820": false, "203.0.113.5:0": false,
	} {
		if got := m.allowed(netip.MustParseAddrPort(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

// pickyDevice refuses a node.
type pickyDevice struct {
	noDevice
	refused string
	added   map[string]bool
}

func (d *pickyDevice) set(p Peer) error {
	if p.Name == d.refused {
		return errors.New("refused")
	}
	d.added[p.Name] = true
	return nil
}

// TestRefusedPeer adds all nodes but one that the device refuses, and tries that one again.
func TestRefusedPeer(t *testing.T) {
	m, err := New(Config{NodeName: "own", Port: mesh.DefaultPort})
	if err != nil {
		t.Fatal(err)
	}
	device := &pickyDevice{refused: "a", added: map[string]bool{}}
	m.device = device
	peers := []Peer{{Name: "a"}, {Name: "b"}}
	if err := m.SetPeers(peers); err == nil || !device.added["b"] {
		t.Errorf("the device has %v, error: %v", device.added, err)
	}
	device.refused = ""
	if err := m.SetPeers(peers); err != nil || !device.added["a"] {
		t.Errorf("then the device has %v, error: %v", device.added, err)
	}
}
