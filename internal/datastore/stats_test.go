package datastore

import (
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	var h Histogram
	if got := *h.Latency(); got != (Latency{}) {
		t.Errorf("got latency %+v of nothing, want zero", got)
	}
	for range 98 {
		h.Add(3 * time.Millisecond)
	}
	before := h
	h.Add(time.Millisecond)
	h.Add(time.Minute)
	// 100 durations: one up to 1 ms, 98 above 2 ms and up to 4 ms, and one above
	// all bounds.
	got := h.Latency()
	if got.Count != 100 || got.P50 != 2*time.Millisecond+2*time.Millisecond*49/98 || got.P99 != 4*time.Millisecond {
		t.Errorf("got %+v", got)
	}
	since := h.Sub(before)
	if got := since.Latency(); got.Count != 2 || got.P50 != time.Millisecond || got.P99 != Bound(histogramBounds-1) {
		t.Errorf("got latency %+v, want that of the two newest", got)
	}
	if since.Sum != time.Minute+time.Millisecond {
		t.Errorf("got sum %s, want %s", since.Sum, time.Minute+time.Millisecond)
	}
}

func TestDiskOf(t *testing.T) {
	if d := DiskOf(t.TempDir()); d == nil || d.Size == 0 || d.Free > d.Size {
		t.Errorf("got %+v", d)
	}
	if d := DiskOf("/none/such"); d != nil {
		t.Errorf("got disk %+v of a folder that does not exist, want none", d)
	}
}
