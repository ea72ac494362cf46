// Package recording is the flight recorder's memory: curves of a node's last day, and moments that were notable.
// The node/recorder package writes it by a Store, and inspect/flight reads it, also from another node.
//
// A recording is a folder with a file for each hour. The file of an hour that has ended has one sample a minute. It
// is compressed, and it is on the disk. The files of the present hour and of the one before are in memory, in a
// folder below /run, and have all samples. They outlive a kedge that is killed. Everything is a line of JSON, so
// that jq can read it, too.
package recording

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"
)

const (
	// Every is the time between two samples.
	Every = 10 * time.Second
	// Kept is how long a recording is kept.
	Kept = 24 * time.Hour
	// minute is the time between two samples in the file of an hour that has ended.
	minute = time.Minute
	// longest is how many bytes of a file are read, and mostCurves how many curves. A node may be captured, and tell
	// anything: each sample takes room for each curve.
	longest    = 4 << 20
	mostCurves = 100
)

// Curve describes one curve.
type Curve struct {
	// Name is for programs: "cpu".
	Name string `json:"name"`
	// Title is for people: "processor in use".
	Title string `json:"title"`
	// Unit is "%", "B", "B/s", "/s" or "ms", or empty for a number of things.
	Unit string `json:"unit,omitempty"`
	// Peak is set if a minute shows its highest sample. Otherwise it shows the mean of its samples.
	Peak bool `json:"peak,omitempty"`
}

// Moment is something that happened.
type Moment struct {
	At time.Time `json:"at"`
	// Kind is a word: "start", "stop", "memory", "link", "clock", or the reason of an Event.
	Kind string `json:"kind"`
	Text string `json:"text"`
	// Version is that of a kedge that started.
	Version string `json:"version,omitempty"`
}

// Sample is what the curves showed at a time.
type Sample struct {
	At time.Time
	// Values are in the order of the curves. An unknown value is NaN. Unknown values at the end may be missing.
	Values []float64
}

// Value returns the value of a curve, or NaN.
func (s Sample) Value(curve int) float64 {
	if curve < len(s.Values) {
		return s.Values[curve]
	}
	return math.NaN()
}

// Recording is a part of what a node has recorded, in the order of time.
type Recording struct {
	Curves  []Curve
	Samples []Sample
	Moments []Moment
}

// line is a line of a file. Curves are those of the samples that follow.
type line struct {
	Curves []Curve `json:"curves,omitempty"`
	At     int64   `json:"at,omitempty"` // seconds since 1970
	Values []value `json:"values,omitempty"`
	Moment *Moment `json:"moment,omitempty"`
}

// value is written with four digits, and as null if it is not known.
type value float64

// MarshalJSON implements json.Marshaler.
func (v value) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(v), 'g', 4, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *value) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*v = value(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(v))
}

// curve returns the place of a curve, which it adds if the recording lacks it. It returns -1 if there are too many.
func (r *Recording) curve(c Curve) int {
	i := slices.IndexFunc(r.Curves, func(known Curve) bool { return known.Name == c.Name })
	if i < 0 && len(r.Curves) < mostCurves {
		i = len(r.Curves)
		r.Curves = append(r.Curves, c)
	}
	return i
}

// decode adds the lines of a file. It leaves out a line that cannot be read: the last one may be cut.
func (r *Recording) decode(text []byte) {
	var places []int
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var read line
		if json.Unmarshal(lines.Bytes(), &read) != nil {
			continue
		}
		switch {
		case read.Moment != nil:
			r.Moments = append(r.Moments, *read.Moment)
		case read.Curves != nil:
			places = places[:0]
			for _, c := range read.Curves {
				places = append(places, r.curve(c))
			}
		case len(read.Values) > 0 && len(read.Values) <= len(places):
			sample := Sample{At: time.Unix(read.At, 0).UTC(), Values: make([]float64, len(r.Curves))}
			for i := range sample.Values {
				sample.Values[i] = math.NaN()
			}
			for i, v := range read.Values {
				if places[i] >= 0 {
					sample.Values[places[i]] = float64(v)
				}
			}
			r.Samples = append(r.Samples, sample)
		}
	}
}

// Parse reads what Encode has returned. It leaves out what it cannot read.
func Parse(text []byte) *Recording {
	r := &Recording{}
	r.decode(text)
	r.sort()
	return r
}

// Encode returns the whole recording, in the form of a file.
func (r *Recording) Encode() []byte {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	write := func(l line) { _ = out.Encode(l) } // neither a buffer nor such a line can fail
	write(line{Curves: r.Curves})
	for _, sample := range r.Samples {
		write(sampleLine(sample.At, sample.Values))
	}
	for _, moment := range r.Moments {
		write(line{Moment: &moment})
	}
	return text.Bytes()
}

func sampleLine(at time.Time, values []float64) line {
	l := line{At: at.Unix(), Values: make([]value, len(values))}
	for i, v := range values {
		l.Values[i] = value(v)
	}
	return l
}

// merge adds another recording. Its samples take the place of those between its first and its last minute.
func (r *Recording) merge(other Recording) {
	if len(other.Samples) > 0 {
		first, last := other.Samples[0].At.Truncate(minute), other.Samples[len(other.Samples)-1].At
		r.Samples = slices.DeleteFunc(r.Samples, func(s Sample) bool { return !s.At.Before(first) && !s.At.After(last) })
	}
	places := make([]int, len(other.Curves))
	for i, c := range other.Curves {
		places[i] = r.curve(c)
	}
	for _, sample := range other.Samples {
		moved := make([]float64, len(r.Curves))
		for i := range moved {
			moved[i] = math.NaN()
		}
		for i, v := range sample.Values {
			if places[i] >= 0 {
				moved[places[i]] = v
			}
		}
		r.Samples = append(r.Samples, Sample{sample.At, moved})
	}
	r.Moments = append(r.Moments, other.Moments...)
	r.sort()
}

// sort brings samples and moments into the order of time, and leaves each moment there once.
func (r *Recording) sort() {
	slices.SortStableFunc(r.Samples, func(a, b Sample) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(r.Moments, func(a, b Moment) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Text, b.Text))
	})
	r.Moments = slices.CompactFunc(r.Moments, func(a, b Moment) bool { return a.At.Equal(b.At) && a.Kind == b.Kind && a.Text == b.Text })
}

// Condense makes one sample of all samples of each step, and returns the new recording.
func (r *Recording) Condense(step time.Duration) Recording {
	condensed := Recording{Curves: r.Curves, Moments: r.Moments}
	for begin := 0; begin < len(r.Samples); {
		at := r.Samples[begin].At.Truncate(step)
		end := begin
		for end < len(r.Samples) && r.Samples[end].At.Truncate(step).Equal(at) {
			end++
		}
		values := make([]float64, len(r.Curves))
		for i, c := range r.Curves {
			values[i] = condense(r.Samples[begin:end], i, c.Peak)
		}
		condensed.Samples = append(condensed.Samples, Sample{at, values})
		begin = end
	}
	return condensed
}

// condense returns the mean of the values that are known, or the highest one.
func condense(samples []Sample, curve int, peak bool) float64 {
	sum, highest, count := 0.0, math.Inf(-1), 0
	for _, s := range samples {
		if v := s.Value(curve); !math.IsNaN(v) {
			sum, highest, count = sum+v, max(highest, v), count+1
		}
	}
	switch {
	case count == 0:
		return math.NaN()
	case peak:
		return highest
	}
	return sum / float64(count)
}

// between drops what is outside of a time.
func (r *Recording) between(from, to time.Time) {
	outside := func(at time.Time) bool { return at.Before(from) || at.After(to) }
	r.Samples = slices.DeleteFunc(r.Samples, func(s Sample) bool { return outside(s.At) })
	r.Moments = slices.DeleteFunc(r.Moments, func(m Moment) bool { return outside(m.At) })
}

func compress(text []byte) []byte {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, _ = w.Write(text) // a buffer cannot fail
	_ = w.Close()
	return compressed.Bytes()
}

func decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("read compressed file: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(r, longest))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("read compressed file: %w", err)
	}
	return text, nil
}
