package pki

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// start is when a synctest bubble's clock begins.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestClockSettle(t *testing.T) {
	tests := map[string]struct {
		record string
		// synchronizedAfter is when a time daemon sets the clock; never if negative.
		synchronizedAfter time.Duration
		cancelAfter       time.Duration
		waited            time.Duration
		want              time.Time
	}{
		"no record":                    {synchronizedAfter: -1, want: start},
		"record in the past":           {record: "1999-12-31T23:00:00Z", synchronizedAfter: -1, want: start},
		"unreadable record":            {record: "\x00\x00", synchronizedAfter: -1, want: start},
		"behind, never set":            {record: "2001-01-01T00:00:00Z", synchronizedAfter: -1, waited: time.Minute, want: start.AddDate(1, 0, 1).Add(-24*time.Hour + time.Minute)},
		"behind by less than the wait": {record: "2000-01-01T00:00:09Z", synchronizedAfter: -1, waited: time.Minute, want: start.Add(69 * time.Second)},
		"set while waiting":            {record: "2001-01-01T00:00:00Z", synchronizedAfter: 5 * time.Second, waited: 5 * time.Second, want: start.Add(5 * time.Second)},
		"the record is the one wrong":  {record: "2040-01-01T00:00:00Z", want: start},
		"stopped while waiting": {record: "2001-01-01T00:00:00Z", synchronizedAfter: -1, cancelAfter: 3 * time.Second,
			waited: 3 * time.Second, want: time.Date(2001, 1, 1, 0, 0, 3, 0, time.UTC)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "clock")
			if test.record != "" {
				write(t, file, test.record)
			}
			synctest.Test(t, func(t *testing.T) {
				c := NewClock(file)
				c.synchronized = func() bool {
					return test.synchronizedAfter >= 0 && time.Since(start) >= test.synchronizedAfter
				}
				ctx := t.Context()
				if test.cancelAfter > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.cancelAfter)
					defer cancel()
				}
				c.Settle(ctx)
				if waited := time.Since(start); waited != test.waited {
					t.Errorf("waited %s, want %s", waited, test.waited)
				}
				if got := c.Now(); !got.Equal(test.want) {
					t.Errorf("it is %s, want %s", got, test.want)
				}
			})
		})
	}
}

func TestClockRecorder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clock")
	recorded := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	synctest.Test(t, func(t *testing.T) {
		c := NewClock(file)
		c.synchronized = func() bool { return false }
		c.watch = func(ctx context.Context, changed func()) error {
			time.Sleep(80 * time.Minute)
			changed()
			<-ctx.Done()
			return nil
		}
		calls := 0
		c.AfterSet(func() { calls++ })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Recorder().Run(ctx, func() {}) }()
		synctest.Wait()
		if got := recorded(); got != "2000-01-01T00:00:00Z" {
			t.Errorf("at start it recorded %s", got)
		}
		time.Sleep(90 * time.Minute)
		synctest.Wait()
		if got := recorded(); got != "2000-01-01T01:00:00Z" {
			t.Errorf("after 90 minutes: got record %s, want 2000-01-01T01:00:00Z", got)
		}
		if calls != 1 {
			t.Errorf("after the clock was set: got %d calls, want 1", calls)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := recorded(); got != "2000-01-01T01:30:00Z" {
			t.Errorf("at stop it recorded %s", got)
		}
		// A folder that is gone is no failure, like a full disk, nor is a kernel without such timers.
		c.watch = func(context.Context, func()) error { return unix.ENOSYS }
		c.file = filepath.Join(t.TempDir(), "gone", "clock")
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if err := c.Recorder().Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
	})
}

func TestNoClockIsTheSystems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := (*Clock)(nil).Now(); !got.Equal(start) {
			t.Errorf("got time %s, want %s", got, start)
		}
	})
}

// TestCertificatesFollowTheClock: if the clock fell back, certificates are made for the
// true time.
func TestCertificatesFollowTheClock(t *testing.T) {
	o := options(t)
	write(t, o.Dir.ClockFile(), "2020-06-01T00:00:00Z")
	synctest.Test(t, func(t *testing.T) {
		c := NewClock(o.Dir.ClockFile())
		c.synchronized = func() bool { return false }
		c.Settle(t.Context())
		o.Clock = c
		s := ensure(t, o)
		cert, _ := s.ServingCertificate(nil)
		want := time.Date(2021, 6, 1, 0, 1, 0, 0, time.UTC)
		if got := cert.Leaf.NotAfter; !got.Equal(want) {
			t.Errorf("it ends %s, want %s", got, want)
		}
		if cert.Leaf.NotBefore.After(time.Now()) {
			t.Error("a client with this machine's clock would refuse it")
		}
	})
}

// TestWatchSystemClock lets the kernel make the timer, and ends the wait for it. The scenario clock of tests/machines sets
// a clock.
func TestWatchSystemClock(t *testing.T) {
	testutil.CheckLeaks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := watchSystemClock(ctx, func() {}); err != nil {
		t.Error(err)
	}
}
