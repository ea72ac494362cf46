package mesh

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

// ping tries a way. After the first pong, pings of the size of the longest packet try whether those arrive.
func (p *peer) ping(w *way, now time.Time) {
	if p.shared == nil {
		return
	}
	m := p.mesh
	m.number++
	knock := mesh.Knock{Message: mesh.Ping, Number: m.number}
	if !w.lastPong.IsZero() && now.Sub(w.askedAt) >= widthEvery {
		knock.Padding = widest - mesh.KnockSize
		w.asked, w.askedAt = knock.Number, now
		w.sent(knock.Number, now)
		m.sendKnock(p, w, &knock)
		m.number++
		knock = mesh.Knock{Message: mesh.Ping, Number: m.number}
	}
	w.sent(knock.Number, now)
	m.sendKnock(p, w, &knock)
}

// call asks the peer, through all Relays, to knock at this node's addresses. A node that only answers a call does not call
// itself: otherwise two nodes would keep each other awake.
func (p *peer) call(now time.Time) {
	if p.shared == nil || len(p.mesh.links) == 0 {
		return
	}
	m := p.mesh
	m.number++
	knock := mesh.Knock{Message: mesh.Answer, Number: m.number, Addresses: m.ownAddressesLocked()}
	if p.talks(now) {
		knock.Message = mesh.Call
	}
	for _, link := range m.links {
		m.sendKnock(p, &way{link: link}, &knock)
	}
}

// sendKnock sends a knock by a way.
func (m *Mesh) sendKnock(p *peer, w *way, knock *mesh.Knock) {
	packet := knock.Seal(m.id, p.shared)
	if w.link != nil {
		m.net.sendBy(w.link, p.id, [][]byte{packet})
	} else {
		m.net.sendTo(w.address, packet)
	}
}

// knocked takes a knock that has come from an address, or through a Relay.
func (m *Mesh) knocked(from netip.AddrPort, link *mesh.Link, packet []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, knock, err := mesh.OpenKnock(packet, func(id mesh.ID) *mesh.Key {
		if p := m.peers[id]; p != nil {
			return p.shared
		}
		return nil
	})
	if err != nil {
		return // anybody can send anything to the port
	}
	p, now := m.peers[id], time.Now()
	switch knock.Message {
	case mesh.Ping:
		p.pinged(from, link, knock.Number, now)
	case mesh.Pong:
		if slices.ContainsFunc(p.ways, func(w *way) bool { return w.answered(knock.Number, now) }) {
			p.choose(now)
		}
	case mesh.Call, mesh.Answer:
		p.takeCall(knock, now)
	}
}

// pinged answers a ping, on its way, and tries that way too.
func (p *peer) pinged(from netip.AddrPort, link *mesh.Link, number uint64, now time.Time) {
	if !p.pongs.AllowN(now, 1) {
		return
	}
	pong := mesh.Knock{Message: mesh.Pong, Number: number}
	if link != nil {
		p.mesh.sendKnock(p, &way{link: link}, &pong)
		return
	}
	pong.Addresses = []netip.AddrPort{from}
	p.mesh.sendKnock(p, &way{address: from}, &pong)
	if !p.active.Load() {
		return
	}
	if w := p.addAddress(from); w != nil && !w.isTrusted(now) && now.Sub(w.lastPing) > pingEvery/4 {
		p.ping(w, now)
	}
}

// takeCall knocks at the addresses of a peer that wants to talk, or that answers. Calls that are not newer than the last one are
// ignored.
func (p *peer) takeCall(call *mesh.Knock, now time.Time) {
	if call.Number <= p.lastCall {
		return
	}
	p.lastCall = call.Number
	isNew := slices.ContainsFunc(call.Addresses, func(address netip.AddrPort) bool { return !slices.Contains(p.called, address) })
	p.called = call.Addresses
	if call.Message == mesh.Call {
		p.calledAt = now
		isNew = !p.active.Swap(true) || isNew
	}
	if isNew && p.active.Load() && now.Sub(p.began) > time.Second {
		p.search(now)
		p.turn(now)
	}
	p.mesh.wake.Notify()
}
