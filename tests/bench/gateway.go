package bench

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

const (
	gatewayFile = "build/bench/gateway.json"
	// gatewayRounds is how often each front is measured, in turns with the others.
	gatewayRounds = 5
	// gatewaySeconds is how long each measurement takes, after a second of warming up.
	gatewaySeconds = "5"
	// gatewayRoutes is how many routes the filled gateway has.
	gatewayRoutes = 1000
	// gatewayHost is the host name that is asked for.
	gatewayHost = "web.example.com"
)

// The fronts of the same pod, by what clients speak. The others are compared with the first.
const (
	frontNginx   = "nginx"
	frontGateway = "kedge"
	frontFilled  = "kedge, 1,000 routes"
)

// gatewayProtocols are what clients speak.
var gatewayProtocols = []string{"HTTP/1.1", "HTTP/1.1 with TLS", "HTTP/2 with TLS"}

// gatewayResult has the results of h2load in one round. Times are in seconds.
type gatewayResult struct {
	PerSecond float64 `json:"perSecond"`
	Median    float64 `json:"median"`
	P99       float64 `json:"p99"`
}

// gatewayReport has the results of all fronts.
type gatewayReport struct {
	origin
	// Rounds has the results by protocol and by front.
	Rounds map[string]map[string][]gatewayResult `json:"rounds"`
	// Memory is kedge's anonymous memory in bytes, by what it has: see gatewayMemory.
	Memory map[string]float64 `json:"anonymous"`
	// Change are the seconds from the API's answer about a changed route until the first request that
	// is answered by it, and ChangeFilled the same with 1,000 routes.
	Change       []float64 `json:"changeSeconds"`
	ChangeFilled []float64 `json:"changeFilledSeconds"`
}

// gatewayMemory are the steps at which memory is read.
var gatewayMemory = []string{"nothing", "one Ingress", "after load", "1,000 routes", "all removed"}

func gatewayColumns() []figure[gatewayResult] {
	return []figure[gatewayResult]{
		{"requests/s", 1, func(r gatewayResult) float64 { return r.PerSecond }},
		{"median, ms", 1e-3, func(r gatewayResult) float64 { return r.Median }},
		{"p99, ms", 1e-3, func(r gatewayResult) float64 { return r.P99 }},
	}
}

// Table returns the medians, and their ratios to those of nginx, as text.
func (r *gatewayReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%smedian of %d rounds; behind each value its ratio to nginx's\n\n", r.heading(), gatewayRounds)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, protocol := range gatewayProtocols {
		compare(table, protocol, []string{frontNginx, frontGateway, frontFilled}, gatewayColumns(), r.Rounds[protocol])
	}
	table.Flush()
	fmt.Fprintln(&text)
	for _, step := range gatewayMemory {
		fmt.Fprintf(&text, "anonymous memory with %s: %.1f MiB (%+.1f)\n", step, r.Memory[step]/mebibyte, (r.Memory[step]-r.Memory[gatewayMemory[0]])/mebibyte)
	}
	fmt.Fprintf(&text, "a changed route is in force after %.0f ms, with %d routes after %.0f ms\n",
		1000*median(slices.Clone(r.Change)), gatewayRoutes, 1000*median(slices.Clone(r.ChangeFilled)))
	return text.String()
}

// readLoad reads a log of h2load: in each line the start of a request in microseconds since the epoch, its
// status, and how long it took in microseconds. It fails if a request failed.
func readLoad(log io.Reader) (result gatewayResult, err error) {
	var took []float64
	first, last := 0.0, 0.0
	for lines := bufio.NewScanner(log); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return result, fmt.Errorf("read log of h2load: the line %q has not three fields", lines.Text())
		}
		start, startErr := strconv.ParseFloat(fields[0], 64)
		duration, durationErr := strconv.ParseFloat(fields[2], 64)
		if startErr != nil || durationErr != nil {
			return result, fmt.Errorf("read log of h2load: the line %q has no numbers", lines.Text())
		}
		if fields[1] == "0" {
			continue // It was under way when the warm-up ended. h2load counts it as done.
		}
		if fields[1] != "200" {
			return result, fmt.Errorf("a request was answered with %s", fields[1])
		}
		if first == 0 || start < first {
			first = start
		}
		last = max(last, start+duration)
		took = append(took, duration/1e6)
	}
	if len(took) < 100 {
		return result, fmt.Errorf("there were only %d requests", len(took))
	}
	slices.Sort(took)
	return gatewayResult{
		PerSecond: float64(len(took)) / ((last - first) / 1e6),
		Median:    took[len(took)/2],
		P99:       took[len(took)*99/100],
	}, nil
}
