package pki

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/version"
)

const (
	// clockPatience is how long a start waits for a clock that is behind.
	clockPatience = time.Minute
	// clockInterval is how often the time is recorded.
	clockInterval = time.Hour
)

// Clock tells the time for validity checks on machines whose own clock may be
// wrong after a boot, such as a Raspberry Pi before it has reached a time
// server. It records in a file the latest time it has seen. A nil Clock tells
// the system's time.
type Clock struct {
	file string
	// synchronized tells whether the kernel knows its time to be right.
	synchronized func() bool
	// watch calls changed each time after the system's clock was set.
	watch func(ctx context.Context, changed func()) error

	mu sync.Mutex
	// The time was at least floor when the system's clock said since. The time is never
	// earlier than floor plus what has passed after since.
	floor, since time.Time
	// lastWarning is the last failure to record. It keeps the same failure from being
	// logged every hour.
	lastWarning string
	// afterSet is called after the system's clock was set.
	afterSet []func()
}

// NewClock returns the clock that keeps its record in file (datadir's
// ClockFile). Call Settle before the first use of certificates.
func NewClock(file string) *Clock {
	c := &Clock{file: file, synchronized: host.ClockSynchronised, watch: watchSystemClock}
	c.setFloor(version.CommitDate())
	return c
}

// Now returns the time to check certificates by: the system's time, unless that is known
// to be too early.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now()
}

// now is Now with the lock held.
func (c *Clock) now() time.Time {
	// since has a monotonic reading, so the difference is the time that really passed,
	// even if the system's clock was set meanwhile.
	now := time.Now()
	if least := c.floor.Add(now.Sub(c.since)); least.After(now.Round(0)) {
		return least
	}
	// Round(0) strips the monotonic reading: callers compare with dates.
	return now.Round(0)
}

func (c *Clock) setFloor(floor time.Time) {
	c.floor, c.since = floor, time.Now()
}

// behind returns by how much the system's time is too early, zero if it is not.
func (c *Clock) behind() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.now().Sub(time.Now().Round(0)))
}

// Settle reads the record. If the system's time is earlier than the record or than this
// build, Settle logs that and waits until the time has been set, at most a minute. After
// that minute, Now overrules the system's time. Settle returns early when ctx is
// cancelled. It never fails: a wrong clock is no reason not to start.
func (c *Clock) Settle(ctx context.Context) {
	log := logrus.WithField("component", "clock")
	c.mu.Lock()
	if recorded := c.read(log); recorded.After(c.floor) {
		c.setFloor(recorded)
	}
	floor := c.floor
	c.mu.Unlock()

	if c.behind() == 0 {
		return
	}
	if c.synchronized() {
		// The record is wrong, not the clock: the clock was once set too far ahead.
		// Without this correction the record would stay wrong for ever.
		log.Warnf("The clock is earlier than the time recorded in %s, %s, but a time server has set it: the record is corrected",
			c.file, floor.UTC().Format(time.RFC3339))
		c.recordNow(log)
		return
	}
	log.Warnf("The clock says %s, but it was already %s: waiting up to %s for a time server to set it",
		time.Now().UTC().Format(time.RFC3339), floor.UTC().Format(time.RFC3339), clockPatience)
	err := wait.PollUntilContextTimeout(ctx, time.Second, clockPatience, false, func(context.Context) (bool, error) {
		if c.synchronized() {
			c.recordNow(log)
			return true, nil
		}
		return c.behind() == 0, nil
	})
	switch {
	case err == nil:
		log.Info("The clock has been set")
	case ctx.Err() == nil:
		log.Warnf("The clock is still behind: certificates are checked as of %s. Set the clock, or give this machine a time server (for example with systemd-timesyncd)",
			c.Now().UTC().Format(time.RFC3339))
	}
}

// AfterSet lets the component of Recorder call f each time after the system's clock was set, for example by a time server
// some time after the boot. Certificates can have expired then.
func (c *Clock) AfterSet(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.afterSet = append(c.afterSet, f)
}

// Recorder returns the component that records the time every hour and when it stops. It also calls what AfterSet was given.
func (c *Clock) Recorder() component.Component {
	return component.Func("clock", func(ctx context.Context, ready func()) error {
		log := logrus.WithField("component", "clock")
		var watch sync.WaitGroup
		watch.Go(func() {
			if err := c.watch(ctx, c.wasSet); err != nil {
				log.WithError(err).Warn("Cannot watch the clock. If it is set, certificates that have expired by it are renewed within an hour")
			}
		})
		hourly := time.NewTicker(clockInterval)
		defer hourly.Stop()
		c.recordNow(log)
		ready()
		for {
			select {
			case <-hourly.C:
				c.recordNow(log)
			case <-ctx.Done():
				watch.Wait()
				c.recordNow(log)
				return nil
			}
		}
	})
}

// wasSet calls what AfterSet was given.
func (c *Clock) wasSet() {
	c.mu.Lock()
	calls := slices.Clone(c.afterSet)
	c.mu.Unlock()
	for _, call := range calls {
		call()
	}
}

// recordNow records the time. A record that cannot be written is no reason to
// stop: it is only needed after the next boot.
func (c *Clock) recordNow(log *logrus.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.synchronized() {
		c.setFloor(version.CommitDate())
	}
	now := c.now()
	err := datadir.WriteFile(c.file, []byte(now.UTC().Format(time.RFC3339)+"\n"), 0o600)
	switch {
	case err == nil:
		c.lastWarning = ""
	case err.Error() != c.lastWarning:
		c.lastWarning = err.Error()
		log.WithError(err).Warn("Cannot record the time")
	}
}

// read returns the recorded time, zero if there is none.
func (c *Clock) read(log *logrus.Entry) time.Time {
	text, err := os.ReadFile(c.file)
	if errors.Is(err, os.ErrNotExist) {
		return time.Time{}
	}
	if err != nil {
		log.WithError(err).Warn("Cannot read the recorded time")
		return time.Time{}
	}
	recorded, err := time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	if err != nil {
		log.Warnf("The time recorded in %s is unreadable and will be replaced", c.file)
		return time.Time{}
	}
	return recorded
}
