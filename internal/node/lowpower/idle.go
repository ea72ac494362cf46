// Package lowpower lets a kedge that has little to do take little.
//
// Go lets a heap grow to twice what lives in it before it collects. In a process
// that mostly waits, half of its memory is then garbage. Here the heap may grow
// by what is allocated in a fixed time instead: that is little at rest, and Go's
// own limit under load, when collecting more often would cost processor time.
//
// At rest most processor time goes into waking up, for hundreds of timers that
// have nothing to do with each other. There the kernel may let them wait for one
// another a little: prctl(2), PR_SET_TIMERSLACK.
package lowpower

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
)

const (
	// interval is how often the rate of allocation is looked at, and the time
	// between two collections that is aimed at.
	interval = 10 * time.Second
	// The bounds of GOGC, in percent of the live heap. The upper one is Go's
	// own; below the lower one little is saved and much is collected.
	busiest = 100
	calmest = 15
	// At rest is who allocates less than the first, until it is the second.
	rests = 30
	wakes = 60
	// limitShare is the part of the machine's memory that the heap may take
	// before the collector works against its growth alone: 1/2.
	limitShare = 2
)

// New returns the component. total is the memory there is for this process, in
// bytes: the machine's, or that of its cgroup. Who sets GOGC or GOMEMLIMIT in
// the environment has their way with the heap.
func New(total uint64) component.Component {
	return component.Func("idle", func(ctx context.Context, ready func()) error {
		if os.Getenv("GOMEMLIMIT") == "" {
			debug.SetMemoryLimit(int64(total / limitShare))
		}
		ready()
		watch(ctx, os.Getenv("GOGC") == "")
		return nil
	})
}

// watch looks at the rate of allocation until ctx is cancelled, and sets GOGC by
// it unless the user has. When the process comes to rest, what it no longer
// needs is given back at once.
func watch(ctx context.Context, setGOGC bool) {
	log := logrus.WithField("component", "idle")
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	percent, resting := busiest, false
	last, _ := heap()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		allocated, live := heap()
		next := gogc(allocated-last, live)
		last = allocated
		if setGOGC && differs(next, percent) {
			debug.SetGCPercent(next)
			percent = next
		}
		switch {
		case !resting && next <= rests:
			resting = true
			debug.FreeOSMemory()
			log.Debug("at rest")
			if err := setTimerSlack(restingSlack); err != nil {
				log.Debugf("Timers stay as exact as they are: %v", err)
			}
		case resting && next > wakes:
			resting = false
			log.Debug("busy")
			if err := setTimerSlack(kernelSlack); err != nil {
				log.Debugf("Timers stay as inexact as they are: %v", err)
			}
		}
	}
}

// gogc returns the percentage by which a heap of live bytes grows in an interval
// in which so many are allocated.
func gogc(allocated, live uint64) int {
	return int(min(max(100*allocated/max(live, 1), calmest), busiest))
}

// differs is whether to change from one percentage to another, which stops the
// process for a moment. The bounds are always reached.
func differs(next, now int) bool {
	if next == calmest || next == busiest {
		return next != now
	}
	return next > now+now/4 || next < now-now/4
}

// heap returns the bytes allocated since the start, and those that were alive
// after the last collection.
func heap() (allocated, live uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}
