package lean

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBookmarkClock has the three timers of a watch cache.
func TestBookmarkClock(t *testing.T) {
	for upstream, want := range map[time.Duration]time.Duration{
		100 * time.Millisecond:  100 * time.Millisecond, // progress requests
		1100 * time.Millisecond: 11 * time.Second,       // bookmarks
		15 * time.Second:        15 * time.Second,       // compaction
	} {
		synctest.Test(t, func(t *testing.T) {
			timer := bookmarkClock{}.NewTimer(upstream)
			defer timer.Stop()
			for _, what := range []string{"at first", "after Reset"} {
				started := time.Now()
				if <-timer.C(); time.Since(started) != want {
					t.Errorf("%s: the timer of %s fired after %s, want %s", what, upstream, time.Since(started), want)
				}
				timer.Reset(upstream)
			}
		})
	}
}
