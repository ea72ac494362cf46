// Package flight shows what a node's flight recorder has recorded: curves as lines of small blocks, and moments. The
// cli package calls it for `kedge recorder` and for the support bundle.
package flight

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/recording"
)

// Flight is a node's recording between two times.
type Flight struct {
	// Node is empty for the node of this host.
	Node     string
	From, To time.Time
	*recording.Recording
}

// width is how many blocks a curve has. The whole table fits into 120 columns.
const width = 60

// blocks are the heights of a curve, from the lowest to the highest.
var blocks = []rune("▁▂▃▄▅▆▇█")

// Table prints curves and moments for people. A gap in a curve is a time without a sample.
func (f Flight) Table(w io.Writer) error {
	if len(f.Samples) == 0 && len(f.Moments) == 0 {
		_, err := fmt.Fprintf(w, "There is no recording from %s to %s.\n", clock(f.From), clock(f.To))
		return err
	}
	f = f.Fit()
	step := max(recording.Every, f.To.Sub(f.From)/width)
	fmt.Fprintf(w, "From %s to %s, a block is %s\n\n", clock(f.From), clock(f.To), step.Round(time.Second))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\t\tLAST\tMEAN\tHIGHEST\tAT")
	for i, curve := range f.Curves {
		s := f.Summary(i)
		if s.Count == 0 {
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", printable(curve.Title), f.line(i, step, s.Highest),
			Amount(s.Last, curve.Unit), Amount(s.Mean, curve.Unit), Amount(s.Highest, curve.Unit), s.At.Local().Format(time.TimeOnly))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, moment := range f.Moments {
		if i == 0 {
			fmt.Fprintln(w)
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s\n", clock(moment.At), printable(moment.Kind), printable(moment.Text)); err != nil {
			return err
		}
	}
	return nil
}

// Fit returns the flight from its first sample on, so that a recording that began later fills the picture.
func (f Flight) Fit() Flight {
	if len(f.Samples) > 0 && f.Samples[0].At.After(f.From) {
		f.From = f.Samples[0].At
	}
	return f
}

// clock prints a time in the time zone of the reader, so that it can be compared with a log.
func clock(t time.Time) string { return t.Local().Format("Mon 15:04:05") }

// printable makes text of another node, or of a tenant, fit for a line of a terminal.
func printable(text string) string {
	return foreigntext.Printable(strings.ReplaceAll(text, "\n", " "))
}

// Summary is a curve in numbers.
type Summary struct {
	Last, Mean, Highest float64
	// At is when the curve was at its highest.
	At time.Time
	// Count is how many samples are known.
	Count int
}

// Summary returns a curve in numbers.
func (f Flight) Summary(curve int) (s Summary) {
	sum := 0.0
	for _, sample := range f.Samples {
		v := sample.Value(curve)
		if math.IsNaN(v) {
			continue
		}
		if s.Count++; s.Count == 1 || v > s.Highest {
			s.Highest, s.At = v, sample.At
		}
		s.Last, sum = v, sum+v
	}
	s.Mean = sum / float64(s.Count)
	return s
}

// line draws a curve. Percentages reach up to 100, other curves up to their highest value.
func (f Flight) line(curve int, step time.Duration, highest float64) string {
	if f.Curves[curve].Unit == "%" {
		highest = 100
	}
	drawn := []rune(strings.Repeat(" ", int(f.To.Sub(f.From)/step)+1))
	sums, counts := make([]float64, len(drawn)), make([]float64, len(drawn))
	for _, sample := range f.Samples {
		v, i := sample.Value(curve), int(sample.At.Sub(f.From)/step)
		if math.IsNaN(v) || i < 0 || i >= len(drawn) {
			continue
		}
		if counts[i]++; f.Curves[curve].Peak {
			sums[i], counts[i] = max(sums[i], v), 1
		} else {
			sums[i] += v
		}
	}
	for i, count := range counts {
		if count == 0 {
			continue
		}
		height := 0
		if highest > 0 {
			height = int(sums[i] / count / highest * float64(len(blocks)))
		}
		drawn[i] = blocks[min(max(height, 0), len(blocks)-1)]
	}
	return string(drawn)
}

// Amount prints a value with its unit.
func Amount(v float64, unit string) string {
	switch unit {
	case "B", "B/s":
		return humanize.IBytes(uint64(max(v, 0))) + strings.TrimPrefix(unit, "B")
	case "":
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	digits := 0
	if math.Abs(v) < 10 {
		digits = 1
	}
	if unit != "/s" {
		unit = " " + unit
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + unit
}

// JSON prints everything for programs. A value that is not known is missing.
func (f Flight) JSON(w io.Writer) error {
	type sample struct {
		At     time.Time          `json:"at"`
		Values map[string]float64 `json:"values"`
	}
	shown := struct {
		Node    string             `json:"node,omitempty"`
		From    time.Time          `json:"from"`
		To      time.Time          `json:"to"`
		Curves  []recording.Curve  `json:"curves"`
		Samples []sample           `json:"samples"`
		Moments []recording.Moment `json:"moments"`
	}{f.Node, f.From, f.To, f.Curves, []sample{}, f.Moments}
	for _, s := range f.Samples {
		values := map[string]float64{}
		for i, curve := range f.Curves {
			if v := s.Value(i); !math.IsNaN(v) {
				values[curve.Name] = v
			}
		}
		shown.Samples = append(shown.Samples, sample{s.At, values})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(shown)
}

// CSV prints the samples, one a line, for a spreadsheet.
func (f Flight) CSV(w io.Writer) error {
	out := csv.NewWriter(w)
	head := []string{"at"}
	for _, curve := range f.Curves {
		head = append(head, curve.Name)
	}
	rows := [][]string{head}
	for _, sample := range f.Samples {
		row := []string{sample.At.Format(time.RFC3339)}
		for i := range f.Curves {
			cell := ""
			if v := sample.Value(i); !math.IsNaN(v) {
				cell = strconv.FormatFloat(v, 'g', 4, 64)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return out.WriteAll(rows)
}
