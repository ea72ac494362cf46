package component

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

// State is the stage of a component's life:
//
//	             dependencies ready         ready()              ctx cancelled
//	Waiting ───────────────────────▶ Starting ──────▶ Ready ───────────────────▶ Stopped
//	                                     │              │
//	                                     └──────┬───────┘ error, panic, or an early return
//	                                            ▼
//	                                          Failed
type State string

// The states of a component.
const (
	Waiting  State = "Waiting"
	Starting State = "Starting"
	Ready    State = "Ready"
	Stopped  State = "Stopped"
	Failed   State = "Failed"
)

// Status is what is known about one component of a Group.
type Status struct {
	Name  string    `json:"name"`
	State State     `json:"state"`
	Since time.Time `json:"since"`
	// Error is the last error, empty if there was none.
	Error string `json:"error,omitempty"`
	// Fault is what the component reports of itself while it runs: what is wrong, and what to
	// do. It is empty if nothing is wrong. See Report.
	Fault string `json:"fault,omitempty"`
	// Took is the time from Starting to Ready; zero before that.
	Took time.Duration `json:"took,omitempty"`
}

// slowStop is the interval at which a slow stop reports the components that it waits for.
const slowStop = 5 * time.Second

// Group runs components. Add them all, then Run once.
type Group struct {
	// StopTimeout is how long Run waits for the components to end once they must stop.
	// Zero means for ever.
	StopTimeout time.Duration
	// OnChange, if set before Run, is called at every change of a component's
	// state, one call at a time.
	OnChange func(Status)
	// OnFault, if set before Run, is called when a component reports another fault than
	// before, or none any more, one call at a time.
	OnFault func(Status)
	// OnReady, if set before Run, is called once, when all components are
	// ready.
	OnReady func()
	// OnStop, if set before Run, is called when the group begins to stop, after a
	// failure too.
	OnStop func()
	// OnSlowStop, if set before Run, is called from time to time while the group
	// stops, with the names of the components that it waits for.
	OnSlowStop func(names []string)

	mu      sync.Mutex
	members []*member
}

type member struct {
	Component
	after []*member
	// before are the members that depend on this one.
	before []*member

	status  Status
	ready   chan struct{}
	stopped chan struct{}
}

// Add puts c into the group. c starts when all of after are ready, and stops before any
// of them. Everything in after must have been added before, or Add panics. So the list of
// Adds reads as the boot order, and a cycle cannot be written.
//
// Add returns c. A component that this process does not have is nil, or a nil pointer. Add leaves it
// out, also among those that c waits for, and returns nil for it.
func (g *Group) Add(c Component, after ...Component) Component {
	if absent(c) {
		return nil
	}
	m := &member{
		Component: c,
		status:    Status{Name: c.Name(), State: Waiting, Since: time.Now()},
		ready:     make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	for _, dependency := range slices.DeleteFunc(slices.Clone(after), absent) {
		i := slices.IndexFunc(g.members, func(m *member) bool { return m.Component == dependency })
		if i < 0 {
			panic(fmt.Sprintf("component %s added before %s, which it depends on", c.Name(), dependency.Name()))
		}
		m.after = append(m.after, g.members[i])
		g.members[i].before = append(g.members[i].before, m)
	}
	g.members = append(g.members, m)
	return c
}

// absent tells whether c is nil, or a nil pointer.
func absent(c Component) bool {
	v := reflect.ValueOf(c)
	return c == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Run starts every component and blocks until all have ended. They end after ctx is
// cancelled, or after the first error or panic, which Run returns with the component's
// name. A component is stopped when the components that depend on it have ended. If
// components do not end within StopTimeout, the error names them and they keep running:
// the caller must then end the process, and hears no more of them. The same goes for an
// error that is AtOnce.
func (g *Group) Run(ctx context.Context) error {
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if g.OnStop != nil {
		context.AfterFunc(stop, g.OnStop)
	}
	var running sync.WaitGroup
	for _, m := range g.members {
		running.Go(func() {
			// This also runs if a library ends the goroutine (kubeinit's Phase).
			defer close(m.stopped)
			if err := g.run(stop, m); err != nil {
				cancel(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-stop.Done():
		if cause := context.Cause(stop); errors.As(cause, &atOnce{}) {
			g.leave()
			return cause
		}
		var timeout <-chan time.Time
		if g.StopTimeout > 0 {
			timeout = time.After(g.StopTimeout)
		}
		if !g.awaitStop(ended, timeout) {
			g.leave()
			late := fmt.Errorf("did not stop within %s: %s", g.StopTimeout, strings.Join(g.unfinished(), ", "))
			if cause := context.Cause(stop); cause != context.Cause(ctx) {
				late = errors.Join(cause, late)
			}
			return late
		}
	}
	// The first failure is the answer, even if the group was asked to stop meanwhile.
	if cause := context.Cause(stop); cause != context.Cause(ctx) {
		return cause
	}
	return nil
}

// awaitStop tells whether all components have ended before timeout.
func (g *Group) awaitStop(ended <-chan struct{}, timeout <-chan time.Time) bool {
	slow := time.NewTicker(slowStop)
	defer slow.Stop()
	for {
		select {
		case <-ended:
			return true
		case <-timeout:
			return false
		case <-slow.C:
			if g.OnSlowStop != nil {
				g.OnSlowStop(g.unfinished())
			}
		}
	}
}

// leave ends the calls about components that keep running, so that the caller's word about
// the end is the last one.
func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.OnChange, g.OnFault, g.OnReady = nil, nil, nil
}

// unfinished returns the names of the components that were told to end and have not
// ended.
func (g *Group) unfinished() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	running := func(m *member) bool { return m.status.State == Starting || m.status.State == Ready }
	var names []string
	for _, m := range g.members {
		if running(m) && !slices.ContainsFunc(m.before, running) {
			names = append(names, m.Name())
		}
	}
	return names
}

// run runs one member from its start to its end. stop is cancelled when the group must
// end.
func (g *Group) run(stop context.Context, m *member) error {
	for _, dependency := range m.after {
		select {
		case <-dependency.ready:
		case <-stop.Done():
			g.change(m, Stopped, nil)
			return nil
		}
	}
	// The component gets stop's values, but not its cancellation: it is cancelled when
	// its dependents have ended.
	ctx, cancel := context.WithCancel(context.WithoutCancel(stop))
	defer cancel()
	ctx = context.WithValue(ctx, reporter{}, func(fault error) { g.report(m, fault) })
	go func() {
		<-stop.Done()
		for _, dependent := range m.before {
			<-dependent.stopped
		}
		cancel()
	}()

	g.change(m, Starting, nil)
	err := runSafely(ctx, m.Component, sync.OnceFunc(func() {
		g.change(m, Ready, nil)
		close(m.ready)
	}))
	switch {
	case err == nil && ctx.Err() == nil:
		err = errors.New("ended without being asked to")
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", m.Name(), err)
		g.change(m, Failed, err)
		return err
	}
	g.change(m, Stopped, nil)
	return nil
}

// runSafely turns a panic of the component's own goroutine into an error.
func runSafely(ctx context.Context, c Component, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return c.Run(ctx, ready)
}

func (g *Group) change(m *member, state State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if state == Ready {
		m.status.Took = now.Sub(m.status.Since)
	}
	if err != nil {
		m.status.Error = err.Error()
	}
	m.status.State, m.status.Since = state, now
	if g.OnChange != nil {
		g.OnChange(m.status)
	}
	allReady := !slices.ContainsFunc(g.members, func(m *member) bool { return m.status.State != Ready })
	if allReady && g.OnReady != nil {
		g.OnReady()
		g.OnReady = nil
	}
}

// report notes what a component reports of itself.
func (g *Group) report(m *member, fault error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	if text == m.status.Fault {
		return
	}
	m.status.Fault = text
	if g.OnFault != nil {
		g.OnFault(m.status)
	}
}

// Status returns the state of every component, in the order in which they were added.
func (g *Group) Status() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]Status, len(g.members))
	for i, m := range g.members {
		all[i] = m.status
	}
	return all
}
