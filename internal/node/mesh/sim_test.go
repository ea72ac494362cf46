package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

// The kinds of NATs, and what else keeps nodes apart.
type natKind string

const (
	noNAT          natKind = "public"
	fullCone       natKind = "full cone"
	restricted     natKind = "address-restricted"
	portRestricted natKind = "port-restricted"
	symmetric      natKind = "symmetric"
	noUDP          natKind = "no UDP"
)

const latency = 10 * time.Millisecond

// internet is a simulated network.
type internet struct {
	mu    sync.Mutex
	hosts map[netip.Addr]*simHost // public hosts
	nats  map[netip.Addr]*nat
	// broken are pairs of addresses between which nothing passes.
	broken map[[2]netip.Addr]bool
	sent   int
	// longest is the size of the longest packet that passes, if it is not 0.
	longest int
}

// nat translates addresses of the hosts behind it.
type nat struct {
	kind    natKind
	public  netip.Addr
	inside  map[netip.Addr]*simHost
	ports   map[[2]netip.AddrPort]uint16 // the inner address and, if the NAT is symmetric, the outer one
	inner   map[uint16]netip.AddrPort
	allowed map[uint16][]netip.AddrPort
	next    uint16
}

// simHost is a host.
type simHost struct {
	t       *testing.T
	net     *internet
	address netip.Addr
	nat     *nat
	packet  func(from netip.AddrPort, packet []byte)
	mesh    *Mesh
	// relays are those of the servers to which the node has a stream, and closers close the streams.
	relays  map[string]*mesh.Relay
	closers map[*simServer]context.CancelFunc
}

func newInternet() *internet {
	return &internet{hosts: map[netip.Addr]*simHost{}, nats: map[netip.Addr]*nat{}, broken: map[[2]netip.Addr]bool{}}
}

// newNAT makes a NAT, or none.
func (i *internet) newNAT(kind natKind, public string) *nat {
	if kind == noNAT || kind == noUDP {
		return nil
	}
	n := &nat{kind: kind, public: netip.MustParseAddr(public), inside: map[netip.Addr]*simHost{}, ports: map[[2]netip.AddrPort]uint16{}, inner: map[uint16]netip.AddrPort{}, allowed: map[uint16][]netip.AddrPort{}, next: 30000}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.nats[n.public] = n
	return n
}

// out returns the outer address of a packet.
func (n *nat) out(from, to netip.AddrPort) netip.AddrPort {
	key := [2]netip.AddrPort{from}
	if n.kind == symmetric {
		key[1] = to
	}
	port, ok := n.ports[key]
	if !ok {
		n.next += 7
		port = n.next
		n.ports[key], n.inner[port] = port, from
	}
	if !slices.Contains(n.allowed[port], to) {
		n.allowed[port] = append(n.allowed[port], to)
	}
	return netip.AddrPortFrom(n.public, port)
}

// in returns the inner address of a packet, or false if the NAT drops it.
func (n *nat) in(from netip.AddrPort, port uint16) (netip.AddrPort, bool) {
	inner, ok := n.inner[port]
	switch n.kind {
	case restricted:
		ok = ok && slices.ContainsFunc(n.allowed[port], func(a netip.AddrPort) bool { return a.Addr() == from.Addr() })
	case portRestricted, symmetric:
		ok = ok && slices.Contains(n.allowed[port], from)
	}
	return inner, ok
}

// send sends a packet of a host.
func (h *simHost) send(to netip.AddrPort, packet []byte) {
	i := h.net
	i.mu.Lock()
	defer i.mu.Unlock()
	i.sent++
	if i.longest > 0 && len(packet) > i.longest {
		return
	}
	from := netip.AddrPortFrom(h.address, mesh.DefaultPort)
	target := i.hosts[to.Addr()]
	if h.nat != nil {
		if inner := h.nat.inside[to.Addr()]; inner != nil {
			i.deliver(inner, from, packet)
			return
		}
		from = h.nat.out(from, to)
	}
	if n := i.nats[to.Addr()]; n != nil && n != h.nat {
		inner, ok := n.in(from, to.Port())
		if !ok {
			return
		}
		target, to = n.inside[inner.Addr()], inner
	}
	if target != nil && to.Port() == mesh.DefaultPort && !i.broken[[2]netip.Addr{from.Addr(), target.address}] {
		i.deliver(target, from, packet)
	}
}

func (i *internet) deliver(to *simHost, from netip.AddrPort, packet []byte) {
	packet = slices.Clone(packet)
	time.AfterFunc(latency, func() { to.packet(from, packet) })
}

// simTransport is the transport of a simulated node.
type simTransport struct {
	host *simHost
	udp  bool
}

func (s simTransport) sendTo(to netip.AddrPort, packet []byte) {
	if s.udp {
		s.host.send(to, packet)
	}
}

func (s simTransport) sendBy(link *mesh.Link, to mesh.ID, datagrams [][]byte) {
	for _, datagram := range datagrams {
		if _, usable := link.Seen(); usable {
			s.sendTo(link.UDP, mesh.Wrap(mesh.KindSend, to, datagram))
		} else {
			link.Send(to, datagram)
		}
	}
}

func (simTransport) again(*peer) {}

type noDevice struct{}

func (noDevice) set(Peer) error        { return nil }
func (noDevice) remove(Peer) error     { return nil }
func (noDevice) setWide(Peer, bool)    {}
func (noDevice) gone() <-chan struct{} { return nil }
func (noDevice) close()                {}

// simServer is a server with a Relay.
type simServer struct {
	*simHost
	relay *mesh.Relay
	// silent streams swallow what is written to them.
	silent atomic.Bool
}

// stream is an end of a stream to a server.
type stream struct {
	net.Conn
	silent *atomic.Bool
}

func (s stream) Write(p []byte) (int, error) {
	if s.silent.Load() {
		return len(p), nil
	}
	return s.Conn.Write(p)
}

func (i *internet) newServer(t *testing.T, address string) *simServer {
	s := &simServer{simHost: &simHost{t: t, net: i, address: netip.MustParseAddr(address)}, relay: mesh.NewRelay("server-"+address, mesh.DefaultPort, 0)}
	s.packet = s.relay.Packet
	s.relay.UseUDP(s.send)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hosts[s.address] = s.simHost
	return s
}

// newNode makes a node behind a NAT, whose stream leads to the servers.
func (i *internet) newNode(ctx context.Context, t *testing.T, name string, kind natKind, n *nat, address string, servers ...*simServer) *simHost {
	t.Helper()
	h := &simHost{t: t, net: i, address: netip.MustParseAddr(address), nat: n, relays: map[string]*mesh.Relay{}, closers: map[*simServer]context.CancelFunc{}}
	m, err := New(Config{NodeName: name, Port: mesh.DefaultPort})
	if err != nil {
		t.Fatal(err)
	}
	m.device, m.net = noDevice{}, simTransport{h, kind != noUDP}
	m.addresses = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: h.address.AsSlice(), Mask: net.CIDRMask(24, 32)}}, nil
	}
	h.mesh, h.packet = m, m.packet
	if kind == noUDP {
		h.packet = func(netip.AddrPort, []byte) {}
	}
	i.mu.Lock()
	if n != nil {
		n.inside[h.address] = h
	} else {
		i.hosts[h.address] = h
	}
	i.mu.Unlock()
	go m.Run(ctx)
	for _, s := range servers {
		h.connect(ctx, s)
	}
	return h
}

// connect opens the stream to a server.
func (h *simHost) connect(ctx context.Context, s *simServer) {
	ctx, h.closers[s] = context.WithCancel(ctx)
	near, far := net.Pipe()
	h.relays["server-"+s.address.String()] = s.relay
	go func() { _ = s.relay.Attach(ctx, h.mesh.cfg.NodeName, stream{far, &s.silent}) }()
	go func() {
		if err := mesh.Serve(ctx, s.address, stream{near, &s.silent}, h.mesh); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
			h.t.Errorf("the stream of %s: %v", h.mesh.cfg.NodeName, err)
		}
	}()
}

// know makes nodes each other's peers.
func know(t *testing.T, all ...*simHost) {
	t.Helper()
	for _, h := range all {
		var peers []Peer
		for _, other := range all {
			if other != h {
				peers = append(peers, Peer{Name: other.mesh.cfg.NodeName, Keys: other.mesh.Keys(), Addresses: []netip.AddrPort{netip.AddrPortFrom(other.address, mesh.DefaultPort)}})
			}
		}
		if err := h.mesh.SetPeers(peers); err != nil {
			t.Fatal(err)
		}
	}
}

// talk sends a packet to a node every half a second, as WireGuard would, for a while.
func (h *simHost) talk(ctx context.Context, to *simHost, duration time.Duration) {
	p := (*h.mesh.known.Load())[to.mesh.id]
	for end := time.Now().Add(duration); ctx.Err() == nil && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		p.talked.Store(time.Now().UnixNano())
		if !p.active.Swap(true) {
			h.mesh.awake(p)
		}
	}
}

// way returns the way to a node.
func (h *simHost) way(to *simHost) string {
	h.mesh.mu.Lock()
	defer h.mesh.mu.Unlock()
	p := h.mesh.peers[to.mesh.id]
	if p.current == nil {
		return "none"
	}
	if !p.current.isTrusted(time.Now()) {
		return "untried " + p.current.String()
	}
	if p.current.link != nil {
		if _, udp := p.current.link.Seen(); !udp {
			return "by the server's stream"
		}
		return "by a server"
	}
	return "direct"
}

// run runs test in simulated time, and ends what it has started.
func run(t *testing.T, test func(ctx context.Context, t *testing.T, i *internet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		test(ctx, t, newInternet())
		cancel()
		time.Sleep(time.Minute) // so that all that talk have ended
	})
}

// TestMatrix finds the way between nodes behind all kinds of NATs.
func TestMatrix(t *testing.T) {
	kinds := []natKind{noNAT, fullCone, restricted, portRestricted, symmetric, noUDP}
	for n, a := range kinds {
		for _, b := range kinds[n:] {
			t.Run(string(a)+" to "+string(b), func(t *testing.T) {
				run(t, func(ctx context.Context, t *testing.T, i *internet) {
					s := i.newServer(t, "198.51.100.1")
					one := i.newNode(ctx, t, "one", a, i.newNAT(a, "203.0.113.1"), privateOr(a, "192.168.1.5", "203.0.113.1"), s)
					two := i.newNode(ctx, t, "two", b, i.newNAT(b, "203.0.113.2"), privateOr(b, "192.168.2.5", "203.0.113.2"), s)
					synctest.Wait()
					know(t, one, two)
					go two.talk(ctx, one, 20*time.Second)
					one.talk(ctx, two, 15*time.Second)
					want := "direct"
					switch {
					case b == noUDP:
						want = "by the server's stream"
						if a != noUDP {
							want = "by a server"
						}
					case a == symmetric && b == symmetric, a == portRestricted && b == symmetric:
						want = "by a server"
					}
					if got := one.way(two); got != want {
						t.Errorf("the way is %s, want %s", got, want)
					}
					if b == noUDP {
						want = "by the server's stream"
					}
					if got := two.way(one); got != want {
						t.Errorf("the way back is %s, want %s", got, want)
					}
				})
			})
		}
	}
}

// privateOr returns the private address of a node behind a NAT, or else the public one.
func privateOr(kind natKind, private, public string) string {
	if kind == noNAT || kind == noUDP {
		return public
	}
	return private
}
