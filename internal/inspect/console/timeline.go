package console

import (
	"slices"
	"strconv"
	"time"
)

// bars is how many bars the time line has. Each stands for a part of the time, and leads to it.
const bars = 48

// longest and shortest are how much time the time line shows: Events are kept for an hour unless an administrator changes
// that.
const (
	longest  = 24 * time.Hour
	shortest = 2 * time.Minute
)

// bar is a part of the time line.
type bar struct {
	From, To time.Time
	// Warnings and Others are how many Events there were. Their heights are in units of the picture.
	Warnings, Others                    int
	X, Width, Height, WarningHeight, Y2 int
	Y                                   int
}

// Link returns the page of this part of the time.
func (b bar) Link() string {
	return "/events?from=" + strconv.FormatInt(b.From.Unix(), 10) + "&to=" + strconv.FormatInt(b.To.Unix(), 10)
}

// timeline shows the Events of all namespaces that the user may read, on one line of time.
var timeline = view{"events", says("Events"), func(v *visit) any {
	events := v.events("")
	if slices.Contains(v.hidden, "Events") {
		events = v.events(v.Namespace)
	}
	to := v.moment("to", v.now)
	from := v.moment("from", to.Add(-time.Hour))
	if from.After(to.Add(-shortest)) {
		from = to.Add(-shortest)
	}
	if from.Before(to.Add(-longest)) {
		from = to.Add(-longest)
	}
	events = slices.DeleteFunc(events, func(e eventRow) bool { return e.At.Before(from) || e.At.After(to) })
	const mostRows = 300
	return struct {
		Now, From, To time.Time
		Zoomed        bool
		Bars          []bar
		Rows          []eventRow
		More          int
	}{v.now, from, to, v.request.FormValue("from") != "", barsOf(events, from, to), events[:min(len(events), mostRows)], max(0, len(events)-mostRows)}
}}

// moment reads a time of the page's address, in seconds since 1970.
func (v *visit) moment(name string, otherwise time.Time) time.Time {
	seconds, err := strconv.ParseInt(v.request.FormValue(name), 10, 64)
	if err != nil {
		return otherwise
	}
	return time.Unix(seconds, 0)
}

// barsOf counts Events by parts of the time.
func barsOf(events []eventRow, from, to time.Time) []bar {
	all := make([]bar, bars)
	step := to.Sub(from) / bars
	for i := range all {
		all[i].From, all[i].To = from.Add(time.Duration(i)*step), from.Add(time.Duration(i+1)*step)
	}
	highest := 1
	for _, e := range events {
		b := &all[min(int(e.At.Sub(from)/step), bars-1)]
		if e.Warning {
			b.Warnings++
		} else {
			b.Others++
		}
		highest = max(highest, b.Warnings+b.Others)
	}
	for i := range all {
		b := &all[i]
		b.Width = pictureWidth / bars
		b.X = i * pictureWidth / bars
		b.Height = b.Others * pictureHeight / highest
		b.WarningHeight = b.Warnings * pictureHeight / highest
		b.Y = pictureHeight - b.Height
		b.Y2 = b.Y - b.WarningHeight
	}
	return all
}
