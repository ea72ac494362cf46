// Package lowpower reduces the memory and the wake-ups of an idle kedge. The agent package adds its
// component on every node.
//
// By default Go lets a heap grow to twice its live size before it collects garbage. In a process
// that mostly waits, half of the memory is then garbage. This package lets the heap grow by what is
// allocated in a fixed time instead. That is little while the process is idle. Under load it is
// at most Go's default, because more frequent collections would cost processor time. A large heap
// grows by less than that even under load, so that a burst leaves less behind.
//
// An idle process spends most of its processor time on waking up, for hundreds of unrelated timers.
// While kedge is not busy, the kernel may delay these timers a little so that several expire
// together: prctl(2), PR_SET_TIMERSLACK.
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
	// interval is how often the rate of allocation is measured. It is also the intended time
	// between two collections.
	interval = 10 * time.Second
	// The bounds of GOGC, in percent of the live heap. The upper one is Go's default: with half of
	// it, the API answered a tenth fewer requests, and watches were later. A lower bound than the
	// lower one would save little memory and collect often.
	busiest = 100
	calmest = 25
	// A heap may grow by busiest percent until it has roomy bytes. Beyond that it grows by at most
	// heavy percent. Otherwise the garbage of a burst leaves holes, which are never closed. With these
	// bounds, a new server still answers as many requests: see node/DECISIONS.md.
	roomy = 160 << 20
	heavy = 40
	// While the process starts, GOGC is at most starting. Most objects that stay are made then, and
	// garbage leaves holes between them that are never closed. A server so keeps 6 MiB less than
	// with busiest, and 15 MiB less if its cluster is new. The start takes a quarter more processor
	// time, and is not noticeably later. With calmest it would keep 12 MiB less, and be later.
	starting = 50
	// The start ends when the process is idle for the first time, and after startTime at the latest.
	startTime = time.Minute
	// The process is idle from GOGC rests downwards, until GOGC rises above wakes.
	rests = 30
	wakes = 40
	// Timers may be late from GOGC calm downwards, until GOGC rises above hectic. A node with 40 pods
	// that do nothing has 50 to 70, because the kubelet looks at every pod ten times a second.
	calm   = 70
	hectic = 90
	// A process at rest gives memory back again when the live heap has shrunk by 1/shrinkShare.
	// That happens minutes after a burst, when caches forget it.
	shrinkShare = 16
	// limitShare sets the memory limit to 1/2 of the machine's memory. At the limit the garbage
	// collector works against any further growth of the heap.
	limitShare = 2
)

// New returns the component. total is the memory available to this process in bytes: the machine's,
// or that of its cgroup. If GOGC or GOMEMLIMIT is set in the environment, the component does not
// change that setting.
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

// watch measures the rate of allocation until ctx is cancelled, and sets GOGC by it if setGOGC is
// true. When the process becomes idle, and when its heap shrinks later, watch returns unused memory
// to the system at once.
func watch(ctx context.Context, setGOGC bool) {
	log := logrus.WithField("component", "idle")
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	percent, resting, late := starting, false, false
	upper, began := starting, time.Now()
	if setGOGC {
		debug.SetGCPercent(percent)
	}
	last, most := heap() // most is the largest live heap since memory was given back
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		allocated, live := heap()
		if resting || time.Since(began) >= startTime {
			upper = busiest
		}
		next := gogc(allocated-last, live, upper)
		last = allocated
		most = max(most, live)
		// next, and not growth, tells how busy the process is: growth is also low if the heap is large.
		if growth := bounded(next, live); setGOGC && differs(growth, percent) {
			debug.SetGCPercent(growth)
			percent = growth
		}
		switch {
		case !resting && next <= rests:
			resting = true
			debug.FreeOSMemory()
			most = live
			log.Debug("at rest")
		case resting && next > wakes:
			resting = false
			log.Debug("busy")
		case resting && live < most-most/shrinkShare:
			debug.FreeOSMemory()
			most = live
			log.Debugf("the live heap has shrunk to %d bytes", live)
		}
		if started := upper == busiest; started && mayBeLate(late, next) != late {
			late = !late
			log.Debugf("timers may be late: %v", late)
			if err := setTimerSlack(slackOf(late)); err != nil {
				log.Debugf("cannot change how late timers may be: %v", err)
			}
		}
	}
}

// mayBeLate tells whether timers may be late at a GOGC. now is whether they may be until now.
func mayBeLate(now bool, gogc int) bool {
	if now {
		return gogc <= hectic
	}
	return gogc <= calm
}

// gogc returns the percentage by which a heap of live bytes grows in an interval in which
// allocated bytes are allocated, between calmest and upper.
func gogc(allocated, live uint64, upper int) int {
	return int(min(max(100*allocated/max(live, 1), calmest), uint64(upper)))
}

// bounded returns the percentage by which a heap of live bytes may grow: at most percent, and not
// beyond roomy unless that would be less than heavy percent.
func bounded(percent int, live uint64) int {
	room := 100 * (max(roomy, live) - live) / max(live, 1)
	return min(percent, max(int(room), heavy))
}

// differs tells whether a new percentage is worth setting, because that stops the process for a
// moment. The bounds are always set.
func differs(next, now int) bool {
	if next == calmest || next == busiest {
		return next != now
	}
	return next > now+now/4 || next < now-now/4
}

// heap returns the bytes that were allocated since the start, and the bytes that were live after
// the last collection.
func heap() (allocated, live uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64(), samples[1].Value.Uint64()
}
