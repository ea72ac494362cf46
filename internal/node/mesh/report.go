package mesh

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Path is where the kubelet's port answers with the ways to other nodes, for callers with the right to get nodes/proxy.
const Path = "/mesh"

// The ways of a Way.
const (
	// Idle is for a node to which no packets go.
	Idle = "idle"
	// Direct is for a node that is reached at one of its addresses.
	Direct = "direct"
	// Relayed is for a node that is reached through a server, by UDP. RelayedByTCP is the same by port 6443.
	Relayed      = "relayed"
	RelayedByTCP = "relayed by TCP"
	// Unknown is for a node that does not answer.
	Unknown = "does not answer"
)

// Way is how this node reaches another one.
type Way struct {
	Node string `json:"node"`
	Way  string `json:"way"`
	// By is the address of the other node, or the name of the server.
	By string `json:"by,omitempty"`
	// RoundTrip is in milliseconds. Loss is the part of the last pings without an answer, from 0 to 1.
	RoundTrip float64 `json:"roundTripMilliseconds,omitempty"`
	Loss      float64 `json:"loss,omitempty"`
	// MTU is the size of the longest packet of a pod, in bytes.
	MTU int `json:"mtu,omitempty"`
	// Why says why the way is not a better one.
	Why string `json:"why,omitempty"`
}

// Ways returns how this node reaches each other node, in the order of their names.
func (m *Mesh) Ways() []Way {
	m.mu.Lock()
	defer m.mu.Unlock()
	ways, now := []Way{}, time.Now()
	for _, p := range m.peers {
		ways = append(ways, p.describe(now))
	}
	slices.SortFunc(ways, func(a, b Way) int { return cmp.Compare(a.Node, b.Node) })
	return ways
}

// describe tells how a peer is reached.
func (p *peer) describe(now time.Time) Way {
	told := Way{Node: p.info.Name, Way: Idle}
	w := p.current
	if !p.active.Load() {
		return told
	}
	if w == nil || !w.isTrusted(now) {
		told.Way = Unknown
		return told
	}
	told.Way, told.By, told.MTU = Direct, w.address.String(), narrowMTU
	if w.link != nil {
		told.Way, told.By, told.Why = Relayed, w.link.Server, p.whyRelayed(now)
		if _, udp := w.link.Seen(); !udp {
			told.Way = RelayedByTCP
		}
	}
	if w.wide {
		told.MTU = MTU
	}
	told.RoundTrip, told.Loss = float64(w.rtt)/float64(time.Millisecond), w.loss()
	return told
}

// whyRelayed tells why there is no direct way.
func (p *peer) whyRelayed(now time.Time) string {
	m := p.mesh
	if now.Sub(p.began) < searchSteps[len(searchSteps)-1] {
		return "a direct way is being looked for"
	}
	tried, seen := 0, map[netip.AddrPort]bool{}
	for _, w := range p.ways {
		if w.direct() {
			tried++
		}
	}
	udp := false
	for _, link := range m.links {
		address, usable := link.Seen()
		udp = udp || usable
		if address.IsValid() {
			seen[address] = true
		}
	}
	switch {
	case !udp && m.cfg.Relay == nil:
		return fmt.Sprintf("no server answers at UDP port %d: open the port on the servers, and UDP to the outside at this node", m.cfg.Port)
	case len(seen) > 1:
		return "the NAT of this node gives it another port for each destination: forward a UDP port to this node, or use another router"
	}
	return fmt.Sprintf("none of %d addresses of the node answers: a NAT or firewall at one end lets no UDP packets in from the other node", tried)
}

// ServeHTTP answers with the ways as JSON.
func (m *Mesh) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m.Ways())
}

// The metrics of the mesh.
var (
	waysMetric = prometheus.NewDesc("kedge_mesh_nodes", "Other nodes, by the way in which this node reaches them.", []string{"way"}, nil)
	rttMetric  = prometheus.NewDesc("kedge_mesh_round_trip_seconds", "Round trip to a node to which packets go.", []string{"node", "way"}, nil)
	lossMetric = prometheus.NewDesc("kedge_mesh_loss_ratio", "Part of the last pings to a node without an answer.", []string{"node", "way"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Mesh) Describe(to chan<- *prometheus.Desc) {
	to <- waysMetric
	to <- rttMetric
	to <- lossMetric
}

// Collect implements prometheus.Collector.
func (m *Mesh) Collect(to chan<- prometheus.Metric) {
	count := map[string]int{Idle: 0, Direct: 0, Relayed: 0, RelayedByTCP: 0, Unknown: 0}
	label := func(way string) string { return strings.ReplaceAll(way, " ", "_") }
	for _, w := range m.Ways() {
		count[w.Way]++
		if w.RoundTrip > 0 {
			to <- prometheus.MustNewConstMetric(rttMetric, prometheus.GaugeValue, w.RoundTrip/1000, w.Node, label(w.Way))
			to <- prometheus.MustNewConstMetric(lossMetric, prometheus.GaugeValue, w.Loss, w.Node, label(w.Way))
		}
	}
	for way, n := range count {
		to <- prometheus.MustNewConstMetric(waysMetric, prometheus.GaugeValue, float64(n), label(way))
	}
}
