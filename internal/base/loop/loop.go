// Package loop repeats work: a controller compares everything after each change, a stream is
// opened again when it ends, a step is tried until it succeeds. After a failure the work is
// tried again, at growing intervals. Packages of every room use it.
package loop

import (
	"cmp"
	"context"
	"errors"
	"math"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
)

// FirstWait is the wait after a failure. It doubles with each further failure in a row, up to
// LastWait.
const (
	FirstWait = time.Second
	LastWait  = time.Minute
)

// Loop says how work is repeated. Only Log has to be set.
type Loop struct {
	Log *logrus.Entry
	// First and Last take the place of FirstWait and LastWait, unless they are zero.
	First, Last time.Duration
	// Spread makes each wait longer by chance, up to twice as long. Nodes use it, so that they
	// do not all come at once to a server that has restarted.
	Spread bool
	// Steady, if it is not zero, is for a stream, which always ends with an error. A stream that
	// has lasted for that long works: its end is a new fault, and the first one in a row.
	Steady time.Duration
	// Wake brings the next turn at once.
	Wake <-chan struct{}
	// Quiet tells whether an error passes by itself. Such an error is not logged. Each of joined
	// errors is judged on its own, so that none hides another one.
	Quiet func(error) bool
	// Meanwhile is what holds until the work succeeds, for the log: "clients may not be sent to
	// this node".
	Meanwhile string
}

// Stream returns the Loop of a stream from a node to a server.
func Stream(log *logrus.Entry) Loop {
	return Loop{Log: log, First: 250 * time.Millisecond, Last: 10 * time.Second, Spread: true, Steady: time.Minute}
}

// Next says when the next turn comes if nothing wakes the Loop.
type Next struct {
	// After is the wait, or zero. A failure that returns it too is tried again after this time at the earliest, so it is
	// for faults that do not pass sooner.
	After time.Duration
	// Changed, if it is not nil, brings the next turn when it is closed, or when it receives.
	Changed <-chan struct{}
}

// Run calls do, and calls it again as the Loop and what do returns say, until ctx ends.
func (l Loop) Run(ctx context.Context, do func(context.Context) (Next, error)) { l.run(ctx, do, false) }

// Until calls do until it succeeds. It fails only with the error of ctx.
func (l Loop) Until(ctx context.Context, do func(context.Context) error) error {
	if l.run(ctx, func(ctx context.Context) (Next, error) { return Next{}, do(ctx) }, true) {
		return nil
	}
	return ctx.Err()
}

// run tells whether do has succeeded. Without once, it goes on after that.
func (l Loop) run(ctx context.Context, do func(context.Context) (Next, error), once bool) (done bool) {
	attempts := l.Attempts()
	for ctx.Err() == nil {
		select {
		case <-l.Wake: // the turn looks at everything
		default:
		}
		next, err := attempts.try(ctx, do)
		if once && err == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-l.Wake:
		case <-next.Changed:
		case <-after(next.After):
		}
	}
	return false
}

// Attempts counts failures, for a loop that cannot be a Loop. One goroutine uses it.
type Attempts struct {
	loop   Loop
	faults Faults
	// delay returns the wait after the next failure.
	delay wait.DelayFunc
}

// Attempts begins to count.
func (l Loop) Attempts() *Attempts {
	a := &Attempts{loop: l, faults: Faults{Log: l.Log, more: ". Trying again"}}
	if l.Meanwhile != "" {
		a.faults.more += ". Until that works, " + l.Meanwhile
	}
	a.begin()
	return a
}

// begin makes the next failure the first one in a row.
func (a *Attempts) begin() {
	backoff := wait.Backoff{Duration: cmp.Or(a.loop.First, FirstWait), Cap: cmp.Or(a.loop.Last, LastWait), Factor: 2, Steps: math.MaxInt}
	if a.loop.Spread {
		backoff.Jitter = 1
	}
	a.delay = backoff.DelayFunc()
}

// try calls do, and logs how it ends, except after the end of ctx.
func (a *Attempts) try(ctx context.Context, do func(context.Context) (Next, error)) (next Next, err error) {
	var steady *time.Timer
	if a.loop.Steady > 0 {
		steady = time.AfterFunc(a.loop.Steady, func() { a.faults.Tell(nil) })
	}
	next, err = do(ctx)
	if steady != nil && !steady.Stop() {
		a.begin()
	}
	if ctx.Err() == nil {
		next.After = max(next.After, a.wait(err))
	}
	return next, err
}

// Again logs how an attempt has ended. It returns what brings the next one, or nil after a success.
// It must not be called after the end of the context.
func (a *Attempts) Again(err error) <-chan time.Time { return after(a.wait(err)) }

// after is time.After, except that nothing comes after zero.
func after(wait time.Duration) <-chan time.Time {
	if wait <= 0 {
		return nil
	}
	return time.After(wait)
}

// wait logs how an attempt has ended, and returns the wait before the next one, or zero.
func (a *Attempts) wait(err error) time.Duration {
	if err == nil {
		a.faults.Tell(nil)
		a.begin()
		return 0
	}
	if loud := a.loop.loud(err); loud != nil {
		a.faults.Tell(loud)
	}
	return a.delay()
}

// loud returns an error without what is quiet, or nil.
func (l Loop) loud(err error) error {
	joined, is := err.(interface{ Unwrap() []error })
	if !is {
		if l.Quiet != nil && l.Quiet(err) {
			return nil
		}
		return err
	}
	all, loud := joined.Unwrap(), []error(nil)
	for _, one := range all {
		if rest := l.loud(one); rest != nil {
			loud = append(loud, rest)
		}
	}
	if len(loud) == len(all) {
		return err
	}
	return errors.Join(loud...)
}
