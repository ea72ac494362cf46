// Package mesh connects the pods of nodes that need not reach each other. The packets of pods go through WireGuard, in this
// process, and from there by the best way that works: directly to an address of the other node, through NATs at which both
// nodes knock, or through the Relay of a server (package cluster/mesh). The package node/network makes a Mesh if the
// flannel-backend is mesh.
//
// Ways are looked for only while packets go to a node. Then this node sends pings by each way, and the other node answers. A
// call through the Relays asks the other node to knock at this node's addresses, so that NATs on both sides let packets in. The
// way in use is tried every second, and replaced when it does not answer. If nobody talks, nothing is sent.
package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/conn"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

const (
	// turnEvery is how often the ways to nodes to which packets go are looked at.
	turnEvery = 500 * time.Millisecond
	// pingsPerSecond is how many pings of a peer are answered.
	pingsPerSecond = 100
)

// Config is what New needs.
type Config struct {
	// NodeName is this node's name. Port is the UDP port of the mesh.
	NodeName string
	Port     uint16
	// Reserved are the ranges of pods and Services. No node is at such an address.
	Reserved []netip.Prefix
	// Relay is that of the server in this process, which uses the same port. It is nil on agents.
	Relay *mesh.Relay
}

// Keys are the public keys of a node, which the other nodes must know.
type Keys struct {
	// WireGuard is the key of packets, and Knock that of knocks.
	WireGuard mesh.Key `json:"publicKey"`
	Knock     mesh.Key `json:"knockKey"`
}

// Peer is another node.
type Peer struct {
	Name string
	Keys Keys
	// PodCIDRs are the only addresses from which the node's packets may come.
	PodCIDRs []netip.Prefix
	// Addresses are those in the Node, with the port of the mesh.
	Addresses []netip.AddrPort
}

func (p Peer) equal(other Peer) bool {
	return p.Name == other.Name && p.Keys == other.Keys && slices.Equal(p.PodCIDRs, other.PodCIDRs) && slices.Equal(p.Addresses, other.Addresses)
}

// Mesh is the connection to all other nodes. It is safe for concurrent use.
type Mesh struct {
	cfg    Config
	log    *logrus.Entry
	id     mesh.ID
	keys   Keys
	secret struct{ wireGuard, knock mesh.Key }
	socket *socket
	net    transport
	device device
	wake   loop.Changes
	// addresses returns those of this host's interfaces.
	addresses func() ([]net.Addr, error)
	// known are the peers, for packets. It is replaced, and never changed.
	known atomic.Pointer[map[mesh.ID]*peer]

	mu     sync.Mutex
	peers  map[mesh.ID]*peer        // guarded by mu
	links  []*mesh.Link             // guarded by mu
	hellos map[*mesh.Link]time.Time // guarded by mu: when the last hello was sent
	number uint64                   // guarded by mu: of the last knock
	own    []netip.AddrPort         // guarded by mu: the addresses of this host
	looked time.Time                // guarded by mu: when own was read
}

// transport is what packets go through.
type transport interface {
	// sendTo sends a packet of the mesh to an address.
	sendTo(to netip.AddrPort, packet []byte)
	// sendBy sends datagrams to a peer through a Relay.
	sendBy(link *mesh.Link, to mesh.ID, datagrams [][]byte)
	// again sends the packet that was sent to a peer before a way was known.
	again(*peer)
}

// device is what packets of pods go through.
type device interface {
	// set adds a peer, or changes it. remove removes it.
	set(Peer) error
	remove(Peer) error
	// setWide says that packets of the whole MTU reach the peer, or not.
	setWide(p Peer, wide bool)
	// gone is closed when somebody has removed the interface.
	gone() <-chan struct{}
	close()
}

// New makes a Mesh with new keys. It sends nothing yet.
func New(cfg Config) (*Mesh, error) {
	m := &Mesh{
		cfg: cfg, log: logrus.WithField("component", "mesh"), id: mesh.IDOf(cfg.NodeName), wake: loop.NewChanges(), addresses: net.InterfaceAddrs,
		peers: map[mesh.ID]*peer{}, hellos: map[*mesh.Link]time.Time{}, number: uint64(time.Now().UnixNano()),
	}
	var err error
	if m.keys.WireGuard, m.secret.wireGuard, err = mesh.NewKeys(); err != nil {
		return nil, err
	}
	if m.keys.Knock, m.secret.knock, err = mesh.NewKeys(); err != nil {
		return nil, err
	}
	m.known.Store(&m.peers)
	m.socket = &socket{
		Bind: conn.NewStdNetBind(), relayed: make(chan relayed, relayQueue),
		peerOf: func(id mesh.ID) *peer { return (*m.known.Load())[id] },
		packet: m.packet,
		awake:  m.awake,
	}
	m.net = m.socket
	return m, nil
}

// Stream returns what serves this node's end of the stream of a server, or nil without a Mesh.
func (m *Mesh) Stream() func(ctx context.Context, server netip.Addr, stream io.ReadWriteCloser) error {
	if m == nil {
		return nil
	}
	return func(ctx context.Context, server netip.Addr, stream io.ReadWriteCloser) error {
		return mesh.Serve(ctx, server, stream, m)
	}
}

// Keys returns this node's public keys.
func (m *Mesh) Keys() Keys { return m.keys }

// Run looks for ways until ctx ends.
func (m *Mesh) Run(ctx context.Context) {
	var own sync.WaitGroup
	defer own.Wait()
	if relay := m.cfg.Relay; relay != nil {
		near, far := net.Pipe()
		own.Go(func() { _ = relay.Attach(ctx, m.cfg.NodeName, far) })
		own.Go(func() { _ = mesh.Serve(ctx, netip.Addr{}, near, m) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		case <-timer.C:
		}
		if m.turn(time.Now()) {
			timer.Reset(turnEvery)
		}
	}
}

// turn looks at the ways to all peers to which packets go. It tells whether there are any.
func (m *Mesh) turn(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	again := false
	for _, p := range m.peers {
		if p.active.Load() && p.turn(now) {
			again = true
		}
	}
	if again {
		m.helloLocked(now)
	}
	return again
}

// helloLocked tells the Relays where this node is, and learns its address from them.
func (m *Mesh) helloLocked(now time.Time) {
	for _, link := range m.links {
		if link.UDP.IsValid() && now.Sub(m.hellos[link]) >= mesh.HelloEvery {
			m.hellos[link] = now
			m.net.sendTo(link.UDP, link.Hello())
		}
	}
}

// awake finds a way for the first packet to a peer after a while.
func (m *Mesh) awake(p *peer) {
	m.mu.Lock()
	now := time.Now()
	p.search(now)
	p.turn(now)
	m.helloLocked(now)
	m.mu.Unlock()
	m.wake.Notify()
}

// packet takes a packet of the mesh from the UDP port.
func (m *Mesh) packet(from netip.AddrPort, packet []byte) {
	kind, _ := mesh.KindOf(packet)
	switch kind {
	case mesh.KindKnock:
		m.knocked(from, nil, packet)
	case mesh.KindSeen:
		m.seen(packet)
	case mesh.KindDeliver:
		m.delivered(from, packet)
	default:
		if m.cfg.Relay != nil {
			m.cfg.Relay.Packet(from, packet)
		}
	}
}

// delivered takes a knock that has come through a Relay.
func (m *Mesh) delivered(from netip.AddrPort, packet []byte) {
	_, datagram, ok := mesh.Unwrap(packet)
	m.mu.Lock()
	i := slices.IndexFunc(m.links, func(l *mesh.Link) bool { return l.UDP == from })
	var link *mesh.Link
	if i >= 0 {
		link = m.links[i]
	}
	m.mu.Unlock()
	if ok && link != nil {
		m.knocked(netip.AddrPort{}, link, datagram)
	}
}

// seen takes the answer to a hello. If this node has another address than before, its peers must know.
func (m *Mesh) seen(packet []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, link := range m.links {
		if link.IsAnswer(packet) && link.Answered(packet) {
			m.searchLocked()
		}
	}
}

// searchLocked begins a search for ways to all peers to which packets go.
func (m *Mesh) searchLocked() {
	now := time.Now()
	for _, p := range m.peers {
		if p.active.Load() {
			p.search(now)
		}
	}
	m.wake.Notify()
}

// Opened implements mesh.Receiver.
func (m *Mesh) Opened(link *mesh.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.links = append(m.links, link)
	m.searchLocked()
}

// Closed implements mesh.Receiver.
func (m *Mesh) Closed(link *mesh.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.links = slices.DeleteFunc(m.links, func(l *mesh.Link) bool { return l == link })
	delete(m.hellos, link)
	m.searchLocked()
}

// Received implements mesh.Receiver.
func (m *Mesh) Received(link *mesh.Link, from mesh.ID, datagram []byte) {
	if _, isMesh := mesh.KindOf(datagram); isMesh {
		m.knocked(netip.AddrPort{}, link, datagram)
		return
	}
	m.socket.received(from, datagram)
}

// Gone implements mesh.Receiver.
func (m *Mesh) Gone(link *mesh.Link, node mesh.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[node]
	if p == nil {
		return
	}
	now := time.Now()
	maps.DeleteFunc(p.gone, func(_ *mesh.Link, at time.Time) bool { return now.Sub(at) > searchAgain })
	p.gone[link] = now
	if p.active.Load() {
		p.choose(now)
	}
}

// SetPeers makes these the other nodes. A node that cannot be added keeps no other one out. The next call tries it again.
func (m *Mesh) SetPeers(all []Peer) error {
	removed, changed := m.replace(all)
	var faults []error
	for _, p := range removed {
		if err := m.device.remove(p.info); err != nil {
			faults = append(faults, fmt.Errorf("remove node %s: %w", p.info.Name, err))
		}
	}
	for _, p := range changed {
		if err := m.device.set(p.info); err != nil {
			faults = append(faults, fmt.Errorf("add node %s: %w", p.info.Name, err))
			m.forget(p.id)
		}
	}
	return errors.Join(faults...)
}

// forget drops a peer.
func (m *Mesh) forget(id mesh.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	peers := maps.Clone(m.peers)
	delete(peers, id)
	m.peers = peers
	m.known.Store(&peers)
}

// replace takes note of the peers, and returns those that are gone and those that are new or have changed. A peer with other
// keys or ranges is another one.
func (m *Mesh) replace(all []Peer) (removed, changed []*peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	peers := map[mesh.ID]*peer{}
	for _, info := range all {
		id := mesh.IDOf(info.Name)
		old := m.peers[id]
		switch {
		case old != nil && old.info.equal(info):
			peers[id] = old
		case old != nil && old.info.Keys == info.Keys && slices.Equal(old.info.PodCIDRs, info.PodCIDRs):
			old.info = info
			peers[id] = old
		default:
			added := &peer{mesh: m, info: info, id: id, gone: map[*mesh.Link]time.Time{}, pongs: rate.NewLimiter(pingsPerSecond, pingsPerSecond)}
			if info.Keys.Knock != (mesh.Key{}) {
				shared := mesh.Shared(info.Keys.Knock, m.secret.knock)
				added.shared = &shared
			}
			peers[id] = added
			changed = append(changed, added)
		}
	}
	for id, old := range m.peers {
		if peers[id] != old {
			removed = append(removed, old)
		}
	}
	m.peers = peers
	m.known.Store(&peers)
	return removed, changed
}

// allowed tells whether a node may be at an address.
func (m *Mesh) allowed(address netip.AddrPort) bool {
	ip := address.Addr()
	if address.Port() == 0 || !ip.IsGlobalUnicast() {
		return false
	}
	return !slices.ContainsFunc(m.cfg.Reserved, func(r netip.Prefix) bool { return r.Contains(ip) })
}

// ownAddressesLocked returns where this node may be reached: its own addresses, and those that Relays have seen.
func (m *Mesh) ownAddressesLocked() []netip.AddrPort {
	if now := time.Now(); now.Sub(m.looked) > turnEvery {
		m.own, m.looked = m.hostAddresses(), now
	}
	var all []netip.AddrPort
	for _, link := range m.links {
		if seen, _ := link.Seen(); seen.IsValid() && m.allowed(seen) {
			all = append(all, seen)
		}
	}
	for _, address := range m.own {
		if !slices.Contains(all, address) {
			all = append(all, address)
		}
	}
	return all[:min(len(all), mesh.MaxAddresses)]
}

// hostAddresses returns the addresses of this host's interfaces.
func (m *Mesh) hostAddresses() (all []netip.AddrPort) {
	addresses, err := m.addresses()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if address := netip.AddrPortFrom(prefix.Addr().Unmap(), m.cfg.Port); err == nil && m.allowed(address) {
			all = append(all, address)
		}
	}
	return all
}
