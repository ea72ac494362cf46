package mesh

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/mesh"
)

const (
	// pingEvery is how often the way in use is tried.
	pingEvery = time.Second
	// trusted is how long a way is used after its last pong. Then another one takes its place.
	trusted = 4 * pingEvery
	// pongPatience is how long after a ping its pong counts.
	pongPatience = 5 * time.Second
	// widthEvery is how often a ping of the whole MTU is sent.
	widthEvery = 10 * time.Second
	// outcomes is how many pings the loss is about.
	outcomes = 20
)

// way is one of the ways to a peer: an address at which the peer takes packets itself, or the Relay of a server. It is guarded
// by mu of its Mesh, except for what does not change.
type way struct {
	address netip.AddrPort // not valid if link is set
	link    *mesh.Link

	lastPing, lastPong time.Time
	rtt                time.Duration
	// pings are the numbers of the pings without a pong yet, and when each was sent.
	pings map[uint64]time.Time
	// lost says of the last pings whether their pong has come, the newest last.
	lost []bool
	// wide is true if a packet of the whole MTU has arrived by this way. asked is the last ping of this size, and askedAt when it
	// was sent.
	wide    bool
	asked   uint64
	askedAt time.Time
}

func (w *way) direct() bool { return w.link == nil }

// isTrusted tells whether the way works.
func (w *way) isTrusted(now time.Time) bool {
	return !w.lastPong.IsZero() && now.Sub(w.lastPong) < trusted
}

// sent takes note of a ping.
func (w *way) sent(number uint64, now time.Time) {
	if w.pings == nil {
		w.pings = map[uint64]time.Time{}
	}
	w.pings[number], w.lastPing = now, now
}

// expire counts pings as lost whose pong has not come in time.
func (w *way) expire(now time.Time) {
	for number, at := range w.pings {
		if now.Sub(at) > pongPatience {
			delete(w.pings, number)
			w.count(true)
			w.wide = w.wide && number != w.asked
		}
	}
}

// answered takes a pong, and tells whether it belongs to a ping of this way.
func (w *way) answered(number uint64, now time.Time) bool {
	at, ok := w.pings[number]
	if !ok {
		return false
	}
	delete(w.pings, number)
	w.lastPong = now
	if rtt := now.Sub(at); w.rtt == 0 {
		w.rtt = rtt
	} else {
		w.rtt += (rtt - w.rtt) / 4
	}
	w.wide = w.wide || number == w.asked
	w.count(false)
	return true
}

func (w *way) count(lost bool) {
	w.lost = append(w.lost, lost)
	if len(w.lost) > outcomes {
		w.lost = w.lost[1:]
	}
}

// loss returns the part of the last pings that was lost, from 0 to 1.
func (w *way) loss() float64 {
	n := 0
	for _, lost := range w.lost {
		if lost {
			n++
		}
	}
	return float64(n) / float64(max(1, len(w.lost)))
}

// compare is negative if w is better than other: a direct way comes before one by a Relay, and then the one with the shorter
// round trip.
func (w *way) compare(other *way) int {
	if w.direct() != other.direct() {
		if w.direct() {
			return -1
		}
		return 1
	}
	return cmp.Compare(w.rtt, other.rtt)
}

// better tells whether it pays to leave current for w, which has to be clearly better.
func (w *way) better(current *way) bool {
	if w.direct() != current.direct() {
		return w.direct()
	}
	return w.rtt < current.rtt*8/10-time.Millisecond
}
