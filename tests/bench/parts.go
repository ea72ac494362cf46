package bench

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// optionalParts are those that a server needs only if somebody uses them.
const optionalParts = "gateway,metrics-server,network-policy,servicelb"

// pair is two ways to start a server, which are compared at rest.
type pair struct {
	// less and more name the ways. more has what costs something.
	less, more string
	// about explains the ways in the heading, and file is where the result is.
	about, file string
	// args are the arguments of the server, by way.
	args map[string][]string
	// begin, if it is not nil, completes the server of the way more.
	begin func(*installation) error
	// writes is how many times a second a client changes an object in the idle time.
	writes int
	// bucket, if it is not nil, counts what the way more sends to S3.
	bucket *countedBucket
	// anonymous and cpu are the targets of the difference, for people.
	anonymous, cpu string
}

// partsPair compares a server without the optional parts with one that has them.
func partsPair() pair {
	const less, more = "without the optional parts", "all parts"
	return pair{
		less: less, more: more, about: "the optional parts are " + optionalParts, file: "build/bench/parts.json",
		args: map[string][]string{less: {"--disable=" + optionalParts}}, anonymous: "≤ 6", cpu: "≤ 0.1",
	}
}

// partsReport has the results of each way.
type partsReport struct {
	origin
	pair
	Options options             `json:"options"`
	Results map[string][]result `json:"results"`
}

// Table returns the medians of both ways, and the difference, as text.
func (r *partsReport) Table() string {
	var text strings.Builder
	state := "at rest"
	if r.writes > 0 {
		state = fmt.Sprintf("with %d writes a second", r.writes)
	}
	fmt.Fprintf(&text, "%s%s, side by side, median of %d, over %s, %s after the first pod was Ready; %s\n\n",
		r.heading(), state, r.Options.Runs, r.Options.Idle, r.Options.Settle, r.about)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\t%s\t%s\tmore\ttarget\t\n", r.less, r.more)
	for _, row := range []struct {
		name   string
		value  func(result) float64
		target string
	}{
		{"PSS, MiB", func(r result) float64 { return r.PSS / mebibyte }, ""},
		{"anonymous, MiB", func(r result) float64 { return r.Anonymous / mebibyte }, r.anonymous},
		{"CPU, % of a core", func(r result) float64 { return r.CPU }, r.cpu},
		{"written to the disk, MiB/h", func(r result) float64 { return r.Written / mebibyte }, ""},
	} {
		of := func(way string) float64 {
			var values []float64
			for _, result := range r.Results[way] {
				values = append(values, row.value(result))
			}
			return median(values)
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%+.2f\t%s\t\n", row.name, of(r.less), of(r.more), of(r.more)-of(r.less), row.target)
	}
	table.Flush()
	if r.bucket != nil {
		fmt.Fprintf(&text, "\n%s\n", r.bucket.summary(r.Options.Idle))
	}
	return text.String()
}
