package recorder

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/base/version"
)

// run runs a recorder for a time, with a source that counts its calls.
func run(t *testing.T, folders recording.Folders, length time.Duration, during func(*Recorder)) *Recorder {
	t.Helper()
	calls := 0.0
	r := New(Config{Folders: folders, Disk: t.TempDir(), Sources: []Source{{
		Curves: []recording.Curve{{Name: "calls"}},
		Read: func(_ time.Duration, values []float64) []recording.Moment {
			calls++
			values[0] = calls
			return nil
		},
	}}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, func() {}) }()
	time.Sleep(length)
	during(r)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the end: %v", err)
	}
	return r
}

func newFolders(t *testing.T) recording.Folders {
	t.Helper()
	return recording.Folders{Disk: filepath.Join(t.TempDir(), "disk"), Memory: filepath.Join(t.TempDir(), "memory")}
}

// kinds returns the kinds of all moments of the last day.
func kinds(t *testing.T, folders recording.Folders) (kinds []string) {
	t.Helper()
	read, err := folders.Read(time.Now().Add(-recording.Kept), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, moment := range read.Moments {
		kinds = append(kinds, moment.Kind)
	}
	return kinds
}

func TestRun(t *testing.T) {
	folders := newFolders(t)
	synctest.Test(t, func(t *testing.T) {
		run(t, folders, 61*time.Second, func(r *Recorder) {
			r.Note(recording.Moment{At: time.Now(), Kind: "link", Text: strings.Repeat("long ", 1000)})
			answer := httptest.NewRecorder()
			r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+"?since=3h", nil))
			told := recording.Parse(answer.Body.Bytes())
			if len(told.Samples) < 7 || len(told.Moments) < 2 {
				t.Errorf("after a minute, the recorder tells %d samples and %d moments", len(told.Samples), len(told.Moments))
			}
			calls := slices.IndexFunc(told.Curves, func(c recording.Curve) bool { return c.Name == "calls" })
			if last := told.Samples[len(told.Samples)-1].Value(calls); last != float64(len(told.Samples)) {
				t.Errorf("the last of %d values is %v", len(told.Samples), last)
			}
			for _, moment := range told.Moments {
				if len(moment.Text) > longestText {
					t.Errorf("a text of %d bytes is kept", len(moment.Text))
				}
			}
			answer = httptest.NewRecorder()
			r.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+"?since=yesterday", nil))
			if answer.Code != http.StatusBadRequest || !strings.Contains(answer.Body.String(), "such as 3h") {
				t.Errorf("a wrong duration: %d %s", answer.Code, answer.Body)
			}
		}).Note(recording.Moment{At: time.Now(), Kind: "link"}) // after the end, it does nothing
		if got, want := kinds(t, folders), []string{"start", "link", "stop"}; !slices.Equal(got, want) {
			t.Errorf("got moments %v, want %v", got, want)
		}
	})
}

// A folder in memory that cannot be made is said once, and kedge goes on.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	folders := recording.Folders{Disk: t.TempDir(), Memory: filepath.Join(file, "memory")}
	synctest.Test(t, func(t *testing.T) { run(t, folders, time.Minute, func(*Recorder) {}) })
}

func TestBeginning(t *testing.T) {
	now := time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	before := func(age time.Duration, version string, kinds ...string) *recording.Recording {
		r := &recording.Recording{Samples: []recording.Sample{{At: now.Add(-age)}}}
		for _, kind := range kinds {
			r.Moments = append(r.Moments, recording.Moment{At: now.Add(-age), Kind: kind, Version: version})
		}
		return r
	}
	for name, test := range map[string]struct {
		before *recording.Recording
		want   []string
		text   string
	}{
		"the first":          {&recording.Recording{}, []string{"start"}, version.Version + " started"},
		"after a stop":       {before(time.Minute, version.Version, "start", "stop"), []string{"start"}, version.Version + " started"},
		"after a kill":       {before(time.Minute, version.Version, "stop", "start"), []string{"killed", "start"}, "started"},
		"after an upgrade":   {before(time.Minute, "v1.30.0", "start", "stop"), []string{"start"}, "started, after v1.30.0"},
		"after a reboot":     {before(3*time.Hour, version.Version, "start", "stop"), []string{"boot", "start"}, "started"},
		"after a power cut":  {before(3*time.Hour, version.Version, "start"), []string{"boot", "start"}, "started"},
		"all is long ago":    {before(3*time.Hour, version.Version), []string{"boot", "start"}, "started"},
		"two starts earlier": {before(time.Minute, version.Version, "start", "start"), []string{"killed", "start"}, "started"},
	} {
		got := beginning(test.before, now.Add(-time.Hour), now)
		var kinds []string
		for _, moment := range got {
			kinds = append(kinds, moment.Kind)
		}
		last := got[len(got)-1]
		if !slices.Equal(kinds, test.want) || !strings.HasSuffix(last.Text, test.text) || last.Version != version.Version {
			t.Errorf("%s: got %+v, want %v and %q", name, got, test.want, test.text)
		}
		lost := strings.Contains(got[0].Text, "the power failed")
		if want := name == "after a power cut"; lost != want {
			t.Errorf("%s: %q says of a lost power: %v, want %v", name, got[0].Text, lost, want)
		}
	}
}

func TestClockSteps(t *testing.T) {
	last := time.Now()
	if d := drift(last, last.Add(recording.Every)); d != 0 {
		t.Errorf("a clock that goes on drifts by %s", d)
	}
	for step, want := range map[time.Duration]string{
		time.Second:          "",
		365 * 24 * time.Hour: "forward by 8760h0m0s",
		-time.Minute:         "back by 1m0s",
	} {
		text := ""
		for _, moment := range clockSteps(step, last) {
			text += moment.Text
		}
		if (text == "") != (want == "") || !strings.Contains(text, want) {
			t.Errorf("a step of %s: %q, want %q", step, text, want)
		}
	}
}

func TestLinks(t *testing.T) {
	var now map[string]link
	source := links(func() (map[string]link, error) { return now, nil })
	read := func(elapsed time.Duration) (values [2]float64, text string) {
		values = [2]float64{math.NaN(), math.NaN()}
		for _, moment := range source.Read(elapsed, values[:]) {
			text += moment.Text + "\n"
		}
		return values, text
	}
	now = map[string]link{"eth0": {up: true, received: 1000, sent: 500}, "eth1": {}}
	if values, text := read(0); text != "" || !math.IsNaN(values[0]) {
		t.Errorf("the first look: %v, %q", values, text)
	}
	now = map[string]link{"eth0": {up: true, downs: 1, received: 2000, sent: 500}, "eth2": {up: true, received: 1e9}}
	values, text := read(10 * time.Second)
	if want := "Interface eth0 was down for a moment\nInterface eth2 is new\nInterface eth1 is gone\n"; text != want || values != [2]float64{100, 0} {
		t.Errorf("got %v, %q, want %q", values, text, want)
	}
	now = map[string]link{"eth0": {downs: 2}, "eth2": {up: true, received: 1e9}}
	if _, text := read(10 * time.Second); text != "Interface eth0 is down\n" {
		t.Errorf("a link that goes down: %q", text)
	}
	now = map[string]link{"eth0": {up: true, downs: 2}, "eth2": {up: true, received: 1e9}}
	if _, text := read(10 * time.Second); text != "Interface eth0 is up\n" {
		t.Errorf("a link that comes up: %q", text)
	}
}

// The curves of this machine have sensible values.
func TestHost(t *testing.T) {
	var curves []recording.Curve
	sources := hostSources(t.TempDir())
	for _, source := range sources {
		curves = append(curves, source.Curves...)
	}
	r := &Recorder{sources: sources}
	r.read(0, len(curves))
	for range 1000 { // something to see
		if err := os.WriteFile(filepath.Join(t.TempDir(), "file"), make([]byte, 1<<10), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	values, _ := r.read(100*time.Millisecond, len(curves))
	for i, curve := range curves {
		switch v := values[i]; {
		case curve.Unit == "%" && (v < 0 || v > 100):
			t.Errorf("%s is %v %%", curve.Name, v)
		case slices.Contains([]string{"cpu", "memory", "disk-used"}, curve.Name) && !(v > 0):
			t.Errorf("%s is %v", curve.Name, v)
		}
	}
}

func TestRates(t *testing.T) {
	rate, mean := NewRate(), &Mean{}
	if v := rate.Of(100, 0); !math.IsNaN(v) {
		t.Errorf("the first call: %v", v)
	}
	if v := rate.Of(150, 10*time.Second); v != 5 {
		t.Errorf("50 in ten seconds are %v", v)
	}
	if v := rate.Of(3, 10*time.Second); !math.IsNaN(v) {
		t.Errorf("a counter that has begun again: %v", v)
	}
	mean.Of(10, 100)
	if v := mean.Of(12, 120); v != 10 {
		t.Errorf("two that took 20 have the mean %v", v)
	}
	if v := mean.Of(12, 120); !math.IsNaN(v) {
		t.Errorf("the mean of none: %v", v)
	}
}

// BenchmarkSample is what the recorder does every ten seconds. At 5 ms, it would take 0.05 % of a core.
func BenchmarkSample(b *testing.B) {
	folders := recording.Folders{Disk: b.TempDir(), Memory: b.TempDir()}
	var curves []recording.Curve
	r := &Recorder{sources: hostSources(b.TempDir())}
	for _, source := range r.sources {
		curves = append(curves, source.Curves...)
	}
	store, err := recording.Open(folders, curves, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		values, _ := r.read(recording.Every, len(curves))
		if err := store.Sample(time.Now(), values); err != nil {
			b.Fatal(err)
		}
	}
}
