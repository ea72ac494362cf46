package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

const (
	partsFile = "build/bench/parts.json"
	// allParts and coreParts are the two ways to start a server.
	allParts  = "all parts"
	coreParts = "without the optional parts"
	// optionalParts are those that a server needs only if somebody uses them.
	optionalParts = "gateway,metrics-server,network-policy,servicelb"
)

func partsWays() []string { return []string{coreParts, allParts} }

func partsArgs(way string) []string {
	if way == allParts {
		return nil
	}
	return []string{"--disable=" + optionalParts}
}

// partsReport has the results of each way.
type partsReport struct {
	origin
	Options options             `json:"options"`
	Results map[string][]result `json:"results"`
}

// Table returns the medians of both ways, and what the optional parts add, as text.
func (r *partsReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%sat rest, side by side, median of %d, over %s, %s after the first pod was Ready; the optional parts are %s\n\n",
		r.heading(), r.Options.Runs, r.Options.Idle, r.Options.Settle, optionalParts)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\t%s\t%s\tmore\ttarget\t\n", coreParts, allParts)
	for _, row := range []struct {
		name   string
		value  func(result) float64
		target string
	}{
		{"PSS, MiB", func(r result) float64 { return r.PSS / mebibyte }, ""},
		{"anonymous, MiB", func(r result) float64 { return r.Anonymous / mebibyte }, "≤ 6"},
		{"CPU, % of a core", func(r result) float64 { return r.CPU }, "≤ 0.1"},
	} {
		of := func(way string) float64 {
			var values []float64
			for _, result := range r.Results[way] {
				values = append(values, row.value(result))
			}
			return median(values)
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%+.2f\t%s\t\n", row.name, of(coreParts), of(allParts), of(allParts)-of(coreParts), row.target)
	}
	table.Flush()
	return text.String()
}
