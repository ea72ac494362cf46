package mesh

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

const (
	// quietAfter is how long after the last packet to a peer its ways are not tried any more.
	quietAfter = 30 * time.Second
	// searchAgain is the time between two searches for a better way while packets go to a peer.
	searchAgain = 30 * time.Second
	// maxWays is how many ways to a peer are known at a time.
	maxWays = 32
)

// searchSteps are when, after its begin, a search knocks at all ways again.
var searchSteps = []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// peer is another node.
type peer struct {
	mesh *Mesh
	info Peer
	id   mesh.ID
	// shared is the key of knocks. It is nil if the peer has told none.
	shared *mesh.Key

	// talked is when the last packet went to the peer, in nanoseconds since 1970. active is true while its ways are tried.
	// chosen is the way in use, or nil.
	talked atomic.Int64
	active atomic.Bool
	chosen atomic.Pointer[chosen]

	// first is a handshake of WireGuard that was sent before any way was known to work.
	first atomic.Pointer[[]byte]

	// The rest is guarded by mesh.mu.
	ways    []*way
	current *way
	// called is where the peer has said that it may be reached, lastCall the number of that call, and calledAt when it came.
	called   []netip.AddrPort
	lastCall uint64
	calledAt time.Time
	// gone are the Relays that did not know the peer, and when they said so.
	gone map[*mesh.Link]time.Time
	// The search has begun at began, and done as many steps as step.
	began time.Time
	step  int
	// pongs limits how many pings are answered.
	pongs *rate.Limiter
	// wide is what the device knows about the longest packets to the peer.
	wide bool
}

// chosen is how packets go to a peer.
type chosen struct {
	address netip.AddrPort
	link    *mesh.Link
}

// talks tells whether packets go to the peer.
func (p *peer) talks(now time.Time) bool { return now.Sub(time.Unix(0, p.talked.Load())) <= quietAfter }

// search begins a search for ways.
func (p *peer) search(now time.Time) { p.began, p.step = now, 0 }

// turn tries ways and chooses one. It tells whether the peer needs another turn.
func (p *peer) turn(now time.Time) bool {
	if !p.talks(now) && now.Sub(p.calledAt) > quietAfter {
		p.active.Store(false)
		p.began = time.Time{}
		return false
	}
	if p.began.IsZero() || now.Sub(p.began) > searchAgain {
		p.search(now)
	}
	p.addWays()
	for _, w := range p.ways {
		w.expire(now)
	}
	p.choose(now)
	if p.step < len(searchSteps) && now.Sub(p.began) >= searchSteps[p.step] {
		p.step++
		p.call(now)
		for _, w := range p.ways {
			p.ping(w, now)
		}
	} else if p.current != nil && now.Sub(p.current.lastPing) >= pingEvery {
		p.ping(p.current, now)
	}
	return true
}

// addWays adds what may lead to the peer, and drops Relays that have gone.
func (p *peer) addWays() {
	p.ways = slices.DeleteFunc(p.ways, func(w *way) bool { return w.link != nil && !slices.Contains(p.mesh.links, w.link) })
	if p.current != nil && !slices.Contains(p.ways, p.current) {
		p.current = nil
	}
	for _, link := range p.mesh.links {
		if !slices.ContainsFunc(p.ways, func(w *way) bool { return w.link == link }) {
			p.ways = append(p.ways, &way{link: link})
		}
	}
	for _, address := range slices.Concat(p.info.Addresses, p.called) {
		p.addAddress(address)
	}
}

// addAddress adds an address of the peer, in the place of one that has never answered if there are too many.
func (p *peer) addAddress(address netip.AddrPort) *way {
	for _, w := range p.ways {
		if w.link == nil && w.address == address {
			return w
		}
	}
	if !p.mesh.allowed(address) {
		return nil
	}
	if len(p.ways) >= maxWays {
		i := slices.IndexFunc(p.ways, func(w *way) bool { return w != p.current && w.direct() && !w.isTrusted(time.Now()) })
		if i < 0 {
			return nil
		}
		p.ways = slices.Delete(p.ways, i, i+1)
	}
	w := &way{address: address}
	p.ways = append(p.ways, w)
	return w
}

// choose takes the best way that works. If none does, it takes a Relay, or else an address without knowing more.
func (p *peer) choose(now time.Time) {
	before := p.current
	if before != nil && !before.isTrusted(now) && !before.lastPong.IsZero() {
		before.lastPong = time.Time{} // so that its loss begins one search
		p.search(now)
	}
	working := slices.DeleteFunc(slices.Clone(p.ways), func(w *way) bool { return !w.isTrusted(now) })
	switch {
	case len(working) > 0:
		best := slices.MinFunc(working, (*way).compare)
		if before == nil || !before.isTrusted(now) || best.better(before) {
			p.current = best
		}
	default:
		p.current = p.untried(now)
	}
	if p.current != before {
		p.use(now)
	} else if p.current != nil && p.current.wide != p.wide {
		p.setWidth()
	}
}

// untried returns a way that may work, or nil.
func (p *peer) untried(now time.Time) *way {
	var best *way
	for _, w := range p.ways {
		if w.link != nil && now.Sub(p.gone[w.link]) < searchAgain {
			continue
		}
		if best == nil || best.direct() && !w.direct() || best.direct() && w.lastPong.After(best.lastPong) {
			best = w
		}
	}
	return best
}

// use lets packets go by the current way.
func (p *peer) use(now time.Time) {
	if p.current == nil {
		p.chosen.Store(nil)
		return
	}
	p.chosen.Store(&chosen{address: p.current.address, link: p.current.link})
	p.mesh.log.Debugf("Node %s is reached %s", p.info.Name, p.current)
	if now.Sub(p.current.lastPing) >= pingEvery {
		p.ping(p.current, now)
	}
	p.mesh.net.again(p)
	p.setWidth()
}

// setWidth tells the device how long packets to the peer may be.
func (p *peer) setWidth() {
	p.wide = p.current.wide
	p.mesh.device.setWide(p.info, p.wide)
}

// String returns the way in words.
func (w *way) String() string {
	if w.link != nil {
		return "through server " + w.link.Server
	}
	return "directly at " + w.address.String()
}
