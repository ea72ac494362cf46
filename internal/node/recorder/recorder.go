// Package recorder is the flight recorder of a node: it takes a sample of some curves every ten seconds, and notes
// moments such as the start of kedge, the kernel killing a process for memory, or a link going down. The agent
// package creates its component. base/recording says where and how a recording is kept.
package recorder

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/foreigntext"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/base/version"
)

// Path is where the kubelet's port answers with the recording, for callers with the right to get nodes/proxy. The
// parameter "since" is a duration such as 3h.
const Path = "/recorder"

// Source is where the values of some curves come from.
type Source struct {
	Curves []recording.Curve
	// Read writes the values of the time since the last call. At the first call, elapsed is zero. What Read does not
	// know, it leaves as it is: NaN. It returns moments that it has found.
	Read func(elapsed time.Duration, values []float64) []recording.Moment
}

// Config is what New needs.
type Config struct {
	Folders recording.Folders
	// Disk is a path on the file system whose room is recorded.
	Disk string
	// Sources are those of parts of kedge, besides the host's own.
	Sources []Source
}

// Recorder is the component. It also answers requests with the recording.
type Recorder struct {
	folders recording.Folders
	sources []Source
	log     *logrus.Entry

	mu    sync.Mutex
	store *recording.Store // nil before the start and after the stop
}

// New makes the recorder of this host.
func New(cfg Config) *Recorder {
	return &Recorder{
		folders: cfg.Folders, sources: append(hostSources(cfg.Disk), cfg.Sources...), log: logrus.WithField("component", "recorder"),
	}
}

// Name implements component.Component.
func (r *Recorder) Name() string { return "recorder" }

// Run implements component.Component. A recording that cannot be written is a warning, and never ends kedge.
func (r *Recorder) Run(ctx context.Context, ready func()) error {
	ready()
	var curves []recording.Curve
	for _, source := range r.sources {
		curves = append(curves, source.Curves...)
	}
	var last time.Time
	loop.Loop{Log: r.log, Meanwhile: "this node records nothing"}.Run(ctx, func(context.Context) (loop.Next, error) {
		now := time.Now()
		next := loop.Next{After: now.Truncate(recording.Every).Add(recording.Every).Sub(now)}
		if err := r.open(now, curves); err != nil {
			return next, err
		}
		if last.IsZero() {
			last = now
		}
		values, moments := r.read(now.Sub(last), len(curves))
		moments = append(moments, clockSteps(drift(last, now), now)...)
		last = now
		for _, moment := range moments {
			r.Note(moment)
		}
		return next, r.store.Sample(now, values)
	})
	r.Note(recording.Moment{At: time.Now(), Kind: "stop", Text: "kedge stopped"})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store == nil {
		return nil
	}
	if err := r.store.Close(); err != nil {
		r.log.WithError(err).Warn("The recording of this hour is not complete on the disk")
	}
	r.store = nil
	return nil
}

// open opens the store, unless it is open.
func (r *Recorder) open(now time.Time, curves []recording.Curve) error {
	if r.store != nil {
		return nil
	}
	before, err := r.folders.Read(now.Add(-recording.Kept), now)
	if err != nil {
		return err
	}
	store, err := recording.Open(r.folders, curves, now)
	if store == nil {
		return err
	}
	r.mu.Lock()
	r.store = store
	r.mu.Unlock()
	for _, moment := range beginning(before, bootTime(now), now) {
		r.Note(moment)
	}
	return err
}

// read takes a sample.
func (r *Recorder) read(elapsed time.Duration, curves int) (values []float64, moments []recording.Moment) {
	values = make([]float64, curves)
	for i := range values {
		values[i] = math.NaN()
	}
	rest := values
	for _, source := range r.sources {
		moments = append(moments, source.Read(elapsed, rest[:len(source.Curves)])...)
		rest = rest[len(source.Curves):]
	}
	return values, moments
}

// Note records a moment. It does nothing while the recorder does not run.
func (r *Recorder) Note(moment recording.Moment) {
	r.mu.Lock()
	store := r.store
	r.mu.Unlock()
	if store == nil {
		return
	}
	moment.Text = foreigntext.Cut(moment.Text, longestText)
	if err := store.Note(moment); err != nil {
		r.log.WithError(err).Debug("A moment is not in the recording")
	}
}

// longestText is how many bytes of a moment's text are kept.
const longestText = 500

// ServeHTTP answers with the recording, in the form of a file: recording.Parse reads it.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	since := recording.Kept
	if text := request.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = time.ParseDuration(text); err != nil || since <= 0 {
			http.Error(w, fmt.Sprintf("since=%q is not a duration: write one such as 3h", text), http.StatusBadRequest)
			return
		}
	}
	now := time.Now()
	read, err := r.folders.Read(now.Add(-min(since, recording.Kept)), now)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/jsonl")
	_, _ = w.Write(read.Encode()) // the client has gone
}

// beginning returns what the recording has to say about this start: after what it comes, and of which version.
func beginning(before *recording.Recording, boot, now time.Time) (moments []recording.Moment) {
	stopped := true
	version := version.Version
	start := recording.Moment{At: now, Kind: "start", Text: "kedge " + version + " started", Version: version}
	for _, moment := range before.Moments {
		switch moment.Kind {
		case "start":
			stopped = false
			start.Text = "kedge " + version + " started"
			if moment.Version != version {
				start.Text += ", after " + moment.Version
			}
		case "stop":
			stopped = true
		}
	}
	if len(before.Samples) > 0 {
		last := before.Samples[len(before.Samples)-1].At
		switch {
		case last.Before(boot) && stopped:
			moments = append(moments, recording.Moment{At: boot, Kind: "boot", Text: "The machine started"})
		case last.Before(boot):
			moments = append(moments, recording.Moment{At: boot, Kind: "boot", Text: "The machine started. Before, kedge had not been stopped: the power failed, or the machine was reset"})
		case !stopped:
			moments = append(moments, recording.Moment{At: now, Kind: "killed", Text: "kedge had ended without a stop, after " + last.Format(time.RFC3339)})
		}
	}
	return append(moments, start)
}

// mostDrift is how far the wall clock may move against the monotonic one between two samples.
const mostDrift = 2 * time.Second

// drift returns how far the wall clock has moved against the monotonic one.
func drift(last, now time.Time) time.Duration { return now.Round(0).Sub(last.Round(0)) - now.Sub(last) }

// clockSteps returns a moment if somebody has set the clock.
func clockSteps(step time.Duration, now time.Time) []recording.Moment {
	if step.Abs() < mostDrift {
		return nil
	}
	direction := "forward"
	if step < 0 {
		direction = "back"
	}
	return []recording.Moment{{At: now, Kind: "clock", Text: fmt.Sprintf("The clock went %s by %s, or the machine was suspended", direction, step.Abs().Round(time.Second))}}
}

// bootTime returns when the machine started, or zero if the kernel does not tell.
func bootTime(now time.Time) time.Time {
	var up unix.Sysinfo_t
	if err := unix.Sysinfo(&up); err != nil {
		return time.Time{}
	}
	return now.Add(-time.Duration(up.Uptime) * time.Second)
}
