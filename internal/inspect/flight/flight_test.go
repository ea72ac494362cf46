package flight

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/recording"
)

// newFlight is an hour with a gap, a peak, and a moment that somebody has forged.
func newFlight() Flight {
	from := time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	r := &recording.Recording{
		Curves: []recording.Curve{
			{Name: "cpu", Title: "processors busy", Unit: "%"}, {Name: "latency", Title: "answer of the disks", Unit: "ms", Peak: true},
			{Name: "out", Title: "sent to the network", Unit: "B/s"}, {Name: "none", Title: "not on this machine"},
		},
		Moments: []recording.Moment{{At: from.Add(time.Minute), Kind: "BackOff", Text: "Pod web\nNode: all is \x1b[31mlost"}},
	}
	for i := range 60 {
		if i >= 20 && i < 30 {
			continue
		}
		latency := 2.0
		if i == 40 {
			latency = 800
		}
		r.Samples = append(r.Samples, recording.Sample{At: from.Add(time.Duration(i) * time.Minute), Values: []float64{float64(i), latency, 3 << 20, math.NaN()}})
	}
	return Flight{Node: "edge", From: from, To: from.Add(time.Hour), Recording: r}
}

func TestTable(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	defer func() { time.Local = local }()
	var text bytes.Buffer
	if err := newFlight().Table(&text); err != nil {
		t.Fatal(err)
	}
	want := `From Mon 13:00:00 to Mon 14:00:00, a block is 1m0s

                                                                                    LAST       MEAN       HIGHEST    AT
processors busy      ▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂          ▃▃▃▃▃▃▃▃▄▄▄▄▄▄▄▄▄▄▄▄▅▅▅▅▅▅▅▅▅▅   59 %       30 %       59 %       13:59:00
answer of the disks  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁          ▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁   2.0 ms     18 ms      800 ms     13:40:00
sent to the network  ████████████████████          ██████████████████████████████   3.0 MiB/s  3.0 MiB/s  3.0 MiB/s  13:00:00

Mon 13:01:00  BackOff: Pod web Node: all is  [31mlost
`
	if got := text.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	text.Reset()
	empty := newFlight()
	empty.Recording = &recording.Recording{}
	if err := empty.Table(&text); err != nil || !strings.HasPrefix(text.String(), "There is no recording from ") {
		t.Errorf("nothing recorded: %q, %v", text.String(), err)
	}
}

func TestFormats(t *testing.T) {
	f := newFlight()
	var text bytes.Buffer
	if err := f.JSON(&text); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Node    string
		Samples []struct{ Values map[string]float64 }
		Moments []recording.Moment
	}
	if err := json.Unmarshal(text.Bytes(), &read); err != nil {
		t.Fatal(err)
	}
	if last := read.Samples[49].Values; read.Node != "edge" || last["cpu"] != 59 || len(last) != 3 || len(read.Moments) != 1 {
		t.Errorf("read %+v", read)
	}
	text.Reset()
	if err := f.CSV(&text); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&text).ReadAll()
	if err != nil || len(rows) != 51 || strings.Join(rows[0], " ") != "at cpu latency out none" || rows[50][1] != "59" || rows[50][4] != "" {
		t.Errorf("got %d rows, %v", len(rows), err)
	}
}
