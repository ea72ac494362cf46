package lean

import (
	"time"

	"k8s.io/utils/clock"
)

// bookmarkInterval is how often a watch cache looks for watches whose bookmark is due. A
// watch gets a bookmark every minute, and one when its first objects have been sent, which
// does not wait for this.
const bookmarkInterval = 10 * time.Second

// bookmarkClock is the real clock for watch caches. With upstream's clock, a watch cache
// looks every second for bookmarks that are due. Each look takes little, but there is a
// watch cache for every kind, and all of them look even if nobody watches.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/cacher.go Cacher.dispatchEvents
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/compactor.go compactor.Run
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/progress/watch_progress.go ConditionalProgressRequester.Run
type bookmarkClock struct{ clock.RealClock }

// NewTimer implements clock.Clock. Only the timer for bookmarks lasts between one and two
// seconds.
func (c bookmarkClock) NewTimer(d time.Duration) clock.Timer {
	timer := c.RealClock.NewTimer(stretch(d))
	if stretch(d) == d {
		return timer
	}
	return bookmarkTimer{timer}
}

type bookmarkTimer struct{ clock.Timer }

// Reset implements clock.Timer.
func (t bookmarkTimer) Reset(d time.Duration) bool { return t.Timer.Reset(stretch(d)) }

// stretch lengthens upstream's interval, and keeps its jitter.
func stretch(d time.Duration) time.Duration {
	if d < time.Second || d > 2*time.Second {
		return d
	}
	return d * (bookmarkInterval / time.Second)
}
