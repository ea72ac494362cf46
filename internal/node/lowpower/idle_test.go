package lowpower

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

func TestGOGC(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		allocated, live uint64
		upper, want     int
	}{
		"at rest":            {0, 60 * mebibyte, busiest, calmest},
		"a little":           {18 * mebibyte, 60 * mebibyte, busiest, 30},
		"busy":               {1000 * mebibyte, 60 * mebibyte, busiest, busiest},
		"starting":           {1000 * mebibyte, 60 * mebibyte, starting, starting},
		"nothing lives yet":  {mebibyte, 0, busiest, busiest},
		"more than a uint32": {1 << 40, 1 << 39, busiest, busiest},
	} {
		if got := gogc(test.allocated, test.live, test.upper); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestBounded(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		percent int
		live    uint64
		want    int
	}{
		"a new server":        {busiest, 60 * mebibyte, busiest},
		"nothing lives yet":   {busiest, 0, busiest},
		"room to grow":        {busiest, 100 * mebibyte, 60},
		"no room":             {busiest, 150 * mebibyte, heavy},
		"large":               {busiest, 1 << 39, heavy},
		"large, and starting": {starting, 1 << 30, heavy},
		"large, and at rest":  {calmest, 1 << 30, calmest},
	} {
		if got := bounded(test.percent, test.live); got != test.want {
			t.Errorf("%s: got %d, want %d", name, got, test.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	for _, test := range []struct {
		now, next int
		want      bool
	}{
		{40, 42, false},
		{40, 60, true},
		{40, 20, true},
		{16, calmest, true},
		{99, busiest, true},
		{calmest, calmest, false},
	} {
		if got := differs(test.next, test.now); got != test.want {
			t.Errorf("from %d to %d: got %v", test.now, test.next, got)
		}
	}
}

// TestMayBeLate checks that a process between calm and hectic changes nothing.
func TestMayBeLate(t *testing.T) {
	late := false
	for i, step := range []struct {
		gogc int
		want bool
	}{{busiest, false}, {calm + 1, false}, {calm, true}, {hectic, true}, {hectic + 1, false}, {hectic, false}, {calmest, true}} {
		if late = mayBeLate(late, step.gogc); late != step.want {
			t.Errorf("step %d, GOGC %d: got %v, want %v", i, step.gogc, late, step.want)
		}
	}
}

// TestUsersSettings checks that the memory limit and GOGC are set, except if the user has set them.
func TestUsersSettings(t *testing.T) {
	const theirs = 77
	before, percent := debug.SetMemoryLimit(-1), debug.SetGCPercent(theirs)
	defer debug.SetMemoryLimit(before)
	defer debug.SetGCPercent(percent)
	run := func() {
		ctx, cancel := context.WithCancel(t.Context())
		if err := New(8<<30).Run(ctx, cancel); err != nil {
			t.Error(err)
		}
	}
	t.Setenv("GOMEMLIMIT", "off")
	t.Setenv("GOGC", "77")
	run()
	if got := debug.SetGCPercent(theirs); got != theirs {
		t.Errorf("the user's GOGC became %d", got)
	}
	if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
		t.Errorf("the user's limit became %d", got)
	}
	t.Setenv("GOMEMLIMIT", "")
	t.Setenv("GOGC", "")
	run()
	if got := debug.SetGCPercent(theirs); got != starting {
		t.Errorf("GOGC is %d at the start, want %d", got, starting)
	}
	if got := debug.SetMemoryLimit(-1); got != 4<<30 {
		t.Errorf("the limit is %d, want half of 8 GiB", got)
	}
}

// TestSetTimerSlack checks every thread and a child process.
func TestSetTimerSlack(t *testing.T) {
	err := setTimerSlack(restingSlack)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	slacks := func() map[string]bool {
		found := map[string]bool{}
		threads, err := filepath.Glob("/proc/self/task/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			slack, err := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
			if err == nil {
				found[strings.TrimSpace(string(slack))] = true
			}
		}
		return found
	}
	if got := slacks(); len(got) != 1 || !got["20000000"] {
		t.Errorf("threads have %v ns", got)
	}
	if err := setTimerSlack(kernelSlack); err != nil {
		t.Fatal(err)
	}
	if got := slacks(); len(got) != 1 || !got["50000"] {
		t.Errorf("threads have %v ns afterwards", got)
	}
	if child, err := exec.Command("cat", "/proc/self/timerslack_ns").Output(); err != nil || strings.TrimSpace(string(child)) != "50000" {
		t.Errorf("a child has %s ns: %v", child, err)
	}
}
