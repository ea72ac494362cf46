package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	networkFile = "build/bench/network.json"
	// networkRounds is how often each way is measured, in turns with the others.
	networkRounds = 3
	// networkSeconds is how long each measurement of throughput takes.
	networkSeconds = "2"
	// The ports of the answering program: on the host, in pods, and of the Service.
	hostPort, podPort, servicePort = "9001", "9002", "9003"
)

// The ways between two hosts of tests/harness that are measured.
const (
	wayLink    = "link"
	wayPod     = "pod to pod"
	wayService = "pod to Service"
	wayNear    = "pod to pod, one node"
)

var (
	// networks are the networks of pods that are measured.
	networks = []podNetwork{
		{name: "vxlan", backend: "vxlan"}, {name: "host-gw", backend: "host-gw"}, {name: "mesh, direct", backend: "mesh"},
		{name: "mesh, relayed", backend: "mesh", nat: harness.Symmetric}, {name: "mesh, relayed by TCP", backend: "mesh", nat: harness.NoUDP},
	}
	// ways are the rows of the table. The others are compared with the first.
	ways = []string{wayLink, wayPod, wayService, wayNear}
)

// podNetwork is a network of pods of two nodes: a server and an agent, or two agents behind NATs of their own.
type podNetwork struct {
	name, backend string
	nat           harness.NAT
}

// wayResult has the results of testserver's measure in one round. Times are in seconds.
type wayResult struct {
	BytesPerSecond float64 `json:"bytesPerSecond"`
	RoundTrip      float64 `json:"roundTrip"`
	RoundTripP99   float64 `json:"roundTripP99"`
	Connect        float64 `json:"connect"`
	Busy           float64 `json:"busy"`
}

// networkReport has the results for the network of pods and for the hosts' own.
type networkReport struct {
	origin
	// Rounds has the results by network and by way.
	Rounds map[string]map[string][]wayResult `json:"rounds"`
}

func networkColumns() []figure[wayResult] {
	return []figure[wayResult]{
		{"Gbit/s", 1e9 / 8, func(r wayResult) float64 { return r.BytesPerSecond }},
		{"round trip, µs", 1e-6, func(r wayResult) float64 { return r.RoundTrip }},
		{"its p99, µs", 1e-6, func(r wayResult) float64 { return r.RoundTripP99 }},
		{"connect, µs", 1e-6, func(r wayResult) float64 { return r.Connect }},
		{"processor s/Gbit", 1, func(r wayResult) float64 { return r.Busy }},
	}
}

// Table returns the medians, and their ratios to those of the link, as text.
func (r *networkReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%smedian of %d rounds; behind each value its ratio to the link's\n\n", r.heading(), networkRounds)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, n := range networks {
		compare(table, n.name, ways, networkColumns(), r.Rounds[n.name])
	}
	table.Flush()
	return text.String()
}
