package recording

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	began  = time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	curves = []Curve{{Name: "cpu", Unit: "%"}, {Name: "latency", Unit: "ms", Peak: true}}
)

func newFolders(t *testing.T) Folders {
	t.Helper()
	return Folders{Disk: filepath.Join(t.TempDir(), "disk"), Memory: filepath.Join(t.TempDir(), "memory")}
}

// open opens a store whose clock shows now.
func open(t *testing.T, folders Folders, now time.Time) *Store {
	t.Helper()
	s, err := Open(folders, curves, now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// record takes a sample every ten seconds: the second of the hour as cpu, and a latency that is high once a minute.
func record(t *testing.T, s *Store, from time.Time, length time.Duration) {
	t.Helper()
	for at := from; at.Before(from.Add(length)); at = at.Add(Every) {
		latency := 1.0
		if at.Second() == 30 {
			latency = 100
		}
		if err := s.Sample(at, []float64{float64(at.Sub(at.Truncate(time.Hour)) / time.Second), latency}); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, folders Folders, from, to time.Time) *Recording {
	t.Helper()
	r, err := folders.Read(from, to)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func count(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %d, want %d", what, got, want)
	}
}

// The last hour has all samples. Older hours have one sample a minute, and they outlive a reboot.
func TestDay(t *testing.T) {
	folders := newFolders(t)
	s := open(t, folders, began)
	record(t, s, began, 30*time.Hour)
	end := began.Add(30 * time.Hour)

	count(t, "samples of ten minutes", len(read(t, folders, end.Add(-10*time.Minute), end).Samples), 60)
	day := read(t, folders, end.Add(-Kept), end)
	count(t, "samples of the day", len(day.Samples), 22*60+2*360)
	for i := 1; i < len(day.Samples); i++ {
		if !day.Samples[i-1].At.Before(day.Samples[i].At) {
			t.Fatalf("sample %d is of %s, after one of %s", i, day.Samples[i].At, day.Samples[i-1].At)
		}
	}
	if first := day.Samples[0]; first.Value(0) != 25 || first.Value(1) != 100 {
		t.Errorf("a minute has %v, want the mean of 0 to 50, and the highest latency", first.Values)
	}
	files, _ := filepath.Glob(filepath.Join(folders.Disk, "*"))
	count(t, "hours on the disk", len(files), mostKept)
	files, _ = filepath.Glob(filepath.Join(folders.Memory, "*"))
	count(t, "hours in memory", len(files), 2)

	if err := os.RemoveAll(folders.Memory); err != nil { // the power fails
		t.Fatal(err)
	}
	count(t, "samples after the power has failed in this hour", len(read(t, folders, end.Add(-Kept), end).Samples), 23*60)
}

// A kedge that was killed has lost nothing, and the next one goes on in the same hour.
func TestKilled(t *testing.T) {
	folders := newFolders(t)
	s := open(t, folders, began)
	record(t, s, began, 10*time.Minute)
	file := folders.memory(began)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, `{"at":1764`...), 0o600); err != nil { // half a line
		t.Fatal(err)
	}
	later := began.Add(20 * time.Minute)
	s = open(t, folders, later)
	record(t, s, later, 10*time.Minute)
	count(t, "samples", len(read(t, folders, began, began.Add(time.Hour)).Samples), 120)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// After a reboot, the rest of the hour joins what the disk has.
	if err := os.RemoveAll(folders.Memory); err != nil {
		t.Fatal(err)
	}
	later = began.Add(40 * time.Minute)
	s = open(t, folders, later)
	record(t, s, later, 10*time.Minute)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(folders.Memory); err != nil {
		t.Fatal(err)
	}
	count(t, "minutes on the disk", len(read(t, folders, began, began.Add(time.Hour)).Samples), 30)
}

// A killed kedge's hour comes to the disk when the next one begins, hours later.
func TestLeft(t *testing.T) {
	folders := newFolders(t)
	record(t, open(t, folders, began), began, time.Hour)
	open(t, folders, began.Add(5*time.Hour))
	if err := os.RemoveAll(folders.Memory); err != nil {
		t.Fatal(err)
	}
	count(t, "minutes on the disk", len(read(t, folders, began, began.Add(time.Hour)).Samples), 60)
}

func TestMoments(t *testing.T) {
	folders := newFolders(t)
	s := open(t, folders, began)
	for i := range 5000 {
		if err := s.Note(Moment{At: began.Add(time.Duration(i) * time.Second / 2), Kind: "BackOff", Text: fmt.Sprint(i, strings.Repeat(" again", 50))}); err != nil {
			t.Fatal(err)
		}
	}
	record(t, s, began.Add(50*time.Minute), 10*time.Minute) // samples still have room
	record(t, s, began.Add(time.Hour), time.Minute)
	r := read(t, folders, began, began.Add(2*time.Hour))
	count(t, "samples", len(r.Samples), 66)
	last := r.Moments[len(r.Moments)-1]
	if want := fmt.Sprintf("%d more moments", 5000-len(r.Moments)+1); !strings.HasPrefix(last.Text, want) {
		t.Errorf("the last moment says %q, want %q", last.Text, want)
	}
	info, err := os.Stat(folders.disk(began))
	if err != nil || info.Size() > 100<<10 {
		t.Errorf("the busiest hour takes %v on the disk, %v", info, err)
	}
	count(t, "moments in a parsed answer", len(Parse(r.Encode()).Moments), len(r.Moments))
}

// A clock that is a year ahead and comes back costs nothing of what is there.
func TestWrongClock(t *testing.T) {
	folders := newFolders(t)
	s := open(t, folders, began)
	record(t, s, began, 3*time.Hour)
	record(t, s, began.AddDate(1, 0, 0), 30*time.Minute)
	record(t, s, began.Add(3*time.Hour), time.Hour)
	end := began.Add(4 * time.Hour)
	count(t, "samples", len(read(t, folders, began, end).Samples), 3*60+360)
	count(t, "samples of a year later", len(read(t, folders, began.AddDate(1, 0, 0), began.AddDate(1, 0, 1)).Samples), 30)
}

// Another version may have other curves.
func TestOtherCurves(t *testing.T) {
	folders := newFolders(t)
	record(t, open(t, folders, began), began, 10*time.Minute)
	other, err := Open(folders, []Curve{{Name: "new"}, {Name: "cpu"}}, began.Add(10*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Sample(began.Add(10*time.Minute), []float64{7, math.NaN()}); err != nil {
		t.Fatal(err)
	}
	r := read(t, folders, began, began.Add(time.Hour))
	last := r.Samples[len(r.Samples)-1]
	if len(r.Curves) != 3 || last.Value(2) != 7 || !math.IsNaN(last.Value(0)) || !math.IsNaN(r.Samples[0].Value(2)) {
		t.Errorf("got curves %v, the last sample %v and the first %v", r.Curves, last.Values, r.Samples[0].Values)
	}
}

// A full or broken disk costs the recording in memory nothing.
func TestNoDisk(t *testing.T) {
	folders := newFolders(t)
	s := open(t, folders, began)
	record(t, s, began, time.Hour)
	if err := os.RemoveAll(folders.Disk); err != nil {
		t.Fatal(err)
	}
	if err := s.Sample(began.Add(time.Hour), []float64{1, 1}); err == nil {
		t.Error("nothing is said about a disk that takes nothing")
	}
	if err := s.Sample(began.Add(time.Hour+Every), []float64{1, 1}); err != nil {
		t.Errorf("it is said again at each sample: %v", err)
	}
	count(t, "samples", len(read(t, folders, began, began.Add(2*time.Hour)).Samples), 362)
	if err := os.MkdirAll(folders.Disk, 0o700); err != nil {
		t.Fatal(err)
	}
	record(t, s, began.Add(2*time.Hour), Every)
	if err := os.RemoveAll(folders.Memory); err != nil {
		t.Fatal(err)
	}
	count(t, "minutes on the disk that came back", len(read(t, folders, began, began.Add(2*time.Hour)).Samples), 61)

	if err := os.WriteFile(folders.disk(began), []byte("no gzip"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := read(t, folders, began, began.Add(2*time.Hour))
	if len(r.Moments) != 1 || !strings.Contains(r.Moments[0].Text, "cannot be read") {
		t.Errorf("a file that cannot be read gives moments %v", r.Moments)
	}
}

// A captured node tells more curves and samples than fit into memory.
func TestManyCurves(t *testing.T) {
	var text strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&text, `{"curves":[{"name":"c%d"}]}`+"\n"+`{"at":%d,"values":[%d]}`+"\n", i, i, i)
	}
	r := Parse([]byte(text.String()))
	count(t, "curves", len(r.Curves), mostCurves)
	for _, sample := range r.Samples {
		if len(sample.Values) > mostCurves {
			t.Fatalf("a sample has %d values", len(sample.Values))
		}
	}
	merged := Recording{Curves: []Curve{{Name: "own"}}}
	merged.merge(*r)
	count(t, "curves of two recordings", len(merged.Curves), mostCurves)
}

func FuzzParse(f *testing.F) {
	r := Recording{Curves: curves, Samples: []Sample{{began, []float64{1, math.NaN()}}}, Moments: []Moment{{At: began, Kind: "start", Text: "x"}}}
	f.Add(r.Encode())
	f.Add([]byte(`{"curves":[{"name":"a"},{"name":"a"}]}` + "\n" + `{"at":1,"values":[1,2,3]}` + "\n" + `{"at":1,"values":[1,null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed := Parse(text)
		for _, sample := range parsed.Samples {
			if len(sample.Values) > len(parsed.Curves) {
				t.Errorf("a sample has %d values of %d curves", len(sample.Values), len(parsed.Curves))
			}
		}
		again := Parse(parsed.Encode())
		if len(again.Samples) != len(parsed.Samples) || len(again.Moments) != len(parsed.Moments) {
			t.Errorf("read again, %d samples and %d moments became %d and %d", len(parsed.Samples), len(parsed.Moments), len(again.Samples), len(again.Moments))
		}
	})
}
