package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/inspect/flight"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// nodes lists the nodes.
var nodes = view{"nodes", says("Nodes"), func(v *visit) any {
	return struct {
		Now  time.Time
		Rows []nodeRow
	}{v.now, v.nodeRows()}
}}

// spans are the times that a page of curves can show.
var spans = []time.Duration{30 * time.Minute, 3 * time.Hour, recording.Kept}

// node shows a node with its pods, and what its flight recorder has recorded.
var node = view{"node", func(v *visit) string { return "Node " + v.value("name") }, func(v *visit) any {
	name := v.value("name")
	read, err := v.Clients.Kubernetes.CoreV1().Nodes().Get(v.ctx, name, metav1.GetOptions{})
	if !v.note("nodes", err) {
		return nil
	}
	report, err := why.Explain(v.ctx, v.Clients, why.Object{Kind: "Node", Name: name})
	if err != nil {
		v.fault = err
		return nil
	}
	shown := struct {
		Name, Here, State string
		Well              bool
		Report            *why.Report
		Now               time.Time
		Pods              []podRow
		Since             string
		Spans             []string
		Curves            []drawn
		Moments           []recording.Moment
		NoRecording       string
		Actions           []action
	}{Name: name, Here: path("nodes", name), Report: report, Now: v.now, Actions: actionsOf("node")}
	shown.State, shown.Well = nodeState(read)
	if pods := listed(v, "pods of all namespaces", v.Clients.Kubernetes.CoreV1().Pods("").List); pods != nil {
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == name {
				shown.Pods = append(shown.Pods, newPodRow(&pod))
			}
		}
	}
	since := spans[1]
	for _, span := range spans {
		text := short(span)
		shown.Spans = append(shown.Spans, text)
		if v.request.FormValue("since") == text {
			since = span
		}
	}
	shown.Since = short(since)
	recorded, err := v.Recording(v.ctx, name, since)
	if err != nil {
		shown.NoRecording = err.Error()
		return shown
	}
	f := flight.Flight{Node: name, From: v.now.Add(-since), To: v.now, Recording: recorded}.Fit()
	for i, curve := range recorded.Curves {
		if d, ok := picture(f, i, curve); ok {
			shown.Curves = append(shown.Curves, d)
		}
	}
	for i := len(recorded.Moments) - 1; i >= 0; i-- {
		shown.Moments = append(shown.Moments, recorded.Moments[i])
	}
	return shown
}}

// short prints a whole duration: 30m, 3h, 24h.
func short(d time.Duration) string {
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dm", int(d.Minutes()))
}

// drawn is a curve as a picture.
type drawn struct {
	Title, Last, Mean, Highest string
	At                         time.Time
	// Lines are the points of polylines: a curve has a gap where nothing is known.
	Lines []string
}

// The size of a picture, in its own units.
const (
	pictureWidth  = 600
	pictureHeight = 60
)

// picture makes the picture of a curve. It returns false if nothing is known of it.
func picture(f flight.Flight, i int, curve recording.Curve) (d drawn, ok bool) {
	numbers := f.Summary(i)
	if numbers.Count == 0 {
		return d, false
	}
	top := numbers.Highest
	if curve.Unit == "%" {
		top = 100
	}
	d = drawn{Title: curve.Title, Last: flight.Amount(numbers.Last, curve.Unit), Mean: flight.Amount(numbers.Mean, curve.Unit), Highest: flight.Amount(numbers.Highest, curve.Unit), At: numbers.At}
	step := max(recording.Every, f.To.Sub(f.From)/pictureWidth)
	condensed := f.Condense(step)
	var line strings.Builder
	end := func() {
		if line.Len() > 0 {
			d.Lines = append(d.Lines, line.String())
		}
		line.Reset()
	}
	var last time.Time
	for _, sample := range condensed.Samples {
		v := sample.Value(i)
		if math.IsNaN(v) {
			continue
		}
		if sample.At.Sub(last) > max(3*step, 2*time.Minute+recording.Every) {
			end()
		}
		last = sample.At
		y := float64(pictureHeight)
		if top > 0 {
			y *= 1 - min(max(v/top, 0), 1)
		}
		fmt.Fprintf(&line, "%.1f,%.1f ", pictureWidth*float64(sample.At.Sub(f.From))/float64(f.To.Sub(f.From)), y)
	}
	end()
	return d, true
}
