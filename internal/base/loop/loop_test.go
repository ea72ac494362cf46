package loop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
)

// rig is a Loop in a bubble of synctest. It notes when each turn begins.
type rig struct {
	Loop
	hook  *logrustest.Hook
	began time.Time
	turns []string
}

func run(t *testing.T, do func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log, hook := logrustest.NewNullLogger()
		do(t, &rig{Loop: Loop{Log: logrus.NewEntry(log)}, hook: hook, began: time.Now()})
	})
}

// turn notes a turn.
func (r *rig) turn() { r.turns = append(r.turns, time.Since(r.began).String()) }

// want compares the turns, and the log, with what they should be.
func (r *rig) want(t *testing.T, turns string, said ...string) {
	t.Helper()
	if got := strings.Join(r.turns, " "); got != turns {
		t.Errorf("the turns are at %s, want %s", got, turns)
	}
	var got []string
	for _, entry := range r.hook.AllEntries() {
		got = append(got, entry.Level.String()+": "+entry.Message)
	}
	if !slices.Equal(got, said) {
		t.Errorf("the log is %q, want %q", got, said)
	}
}

// script returns a function that returns these errors, one after the other, and then ends the
// context.
func (r *rig) script(end context.CancelFunc, faults ...error) func(context.Context) (Next, error) {
	return func(context.Context) (Next, error) {
		r.turn()
		if len(r.turns) > len(faults) {
			end()
			return Next{}, errors.New("after the end")
		}
		return Next{After: time.Hour}, faults[len(r.turns)-1]
	}
}

var (
	errA     = errors.New("a")
	errB     = errors.New("b")
	errQuiet = errors.New("quiet")
)

func isQuiet(err error) bool { return errors.Is(err, errQuiet) }

func TestFailures(t *testing.T) {
	const more = ". Trying again"
	for _, test := range []struct {
		name   string
		change func(*Loop)
		faults []error
		turns  string
		said   []string
	}{
		{
			name: "a fault is said once, and its end", faults: []error{errA, errA, nil, errA, nil},
			turns: "0s 1h0m0s 2h0m0s 3h0m0s 4h0m0s 5h0m0s",
			said:  []string{"warning: a" + more, "info: This fault is over: a", "warning: a" + more, "info: This fault is over: a"},
		},
		{
			name: "another fault is said", faults: []error{errA, errB, errB, nil},
			turns: "0s 1h0m0s 2h0m0s 3h0m0s 4h0m0s",
			said:  []string{"warning: a" + more, "warning: b" + more, "info: This fault is over: b"},
		},
		{
			name: "what passes by itself is not said", faults: []error{errQuiet, nil, errA, errQuiet, errA, nil},
			turns: "0s 1h0m0s 2h0m0s 3h0m0s 4h0m0s 5h0m0s 6h0m0s",
			said:  []string{"warning: a" + more, "info: This fault is over: a"},
		},
		{
			name: "what passes by itself hides nothing", faults: []error{errors.Join(errQuiet, errA), errors.Join(errA, errB), errors.Join(errQuiet, errors.Join(errQuiet))},
			turns: "0s 1h0m0s 2h0m0s 3h0m0s",
			said:  []string{"warning: a" + more, "warning: a; b" + more},
		},
		{
			name: "what holds meanwhile is said", change: func(l *Loop) { l.Meanwhile = "nothing works" }, faults: []error{fmt.Errorf("%w and %w", errA, errB)},
			turns: "0s 1h0m0s",
			said:  []string{"warning: a and b. Trying again. Until that works, nothing works"},
		},
		{
			name: "the port of this end makes no difference", faults: []error{opError(1), opError(2)},
			turns: "0s 1h0m0s 2h0m0s",
			said:  []string{"warning: read tcp 192.0.2.9:6443: a" + more},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(t *testing.T, r *rig) {
				r.Quiet = isQuiet
				if test.change != nil {
					test.change(&r.Loop)
				}
				ctx, end := context.WithCancel(t.Context())
				r.Run(ctx, r.script(end, test.faults...))
				r.want(t, test.turns, test.said...)
			})
		})
	}
}

// opError is what a connection fails with that begins at a port.
func opError(port int) error {
	return &net.OpError{
		Op: "read", Net: "tcp", Err: errA,
		Source: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 6443},
	}
}

func TestWaitsGrow(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.First, r.Last = 2*time.Second, 5*time.Second
		if err := r.Until(t.Context(), func(context.Context) error {
			if r.turn(); len(r.turns) < 5 {
				return errA
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		r.want(t, "0s 2s 6s 11s 16s", "warning: a. Trying again", "info: This fault is over: a")
	})
	run(t, func(t *testing.T, r *rig) {
		r.Spread = true
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := r.Until(ctx, func(context.Context) error { return errA }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error after the end is %v", err)
		}
		a := r.Attempts()
		for wait := FirstWait; wait < 10*LastWait; wait *= 2 {
			if after := a.wait(errA); after < min(wait, LastWait) || after > 2*min(wait, LastWait) {
				t.Errorf("the wait is %s", after)
			}
		}
		if a.wait(nil) != 0 || a.wait(errA) > 2*FirstWait {
			t.Error("after a success, the wait is not the first one")
		}
	})
}

func TestWake(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		wake, changed := make(chan struct{}, 1), make(chan struct{})
		r.Wake = wake
		wake <- struct{}{} // the first turn looks at everything
		ctx, end := context.WithCancel(t.Context())
		go r.Run(ctx, func(context.Context) (Next, error) {
			r.turn()
			switch len(r.turns) {
			case 1:
				return Next{}, nil
			case 2:
				wake <- struct{}{} // while it runs
				return Next{}, errA
			case 3:
				return Next{Changed: changed}, nil
			case 4:
				return Next{Changed: changed, After: time.Second}, errA
			}
			return Next{}, nil
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		r.want(t, "0s")
		wake <- struct{}{}
		synctest.Wait()
		r.want(t, "0s 1h0m0s 1h0m0s", "warning: a. Trying again", "info: This fault is over: a")
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(r.turns) != 3 {
			t.Errorf("without a change the turns are at %v", r.turns)
		}
		close(changed)
		synctest.Wait()
		if len(r.turns) != 5 {
			t.Errorf("the turns are at %v", r.turns)
		}
		end()
		synctest.Wait()
	})
}

// TestSteady has a stream that breaks at once, then one that lasts.
func TestSteady(t *testing.T) {
	run(t, func(t *testing.T, r *rig) {
		r.Steady = time.Minute
		ctx, end := context.WithCancel(t.Context())
		r.Run(ctx, func(ctx context.Context) (Next, error) {
			switch r.turn(); len(r.turns) {
			case 4:
				time.Sleep(time.Hour)
			case 6:
				end()
			}
			return Next{}, errA
		})
		r.want(t, "0s 1s 3s 7s 1h0m8s 1h0m10s", "warning: a. Trying again", "info: This fault is over: a", "warning: a. Trying again")
	})
}
