package component

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// recorder notes what happens to the components it makes.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) note(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) component(name string) Component {
	return Func(name, func(ctx context.Context, ready func()) error {
		r.note("start " + name)
		ready()
		<-ctx.Done()
		r.note("stop " + name)
		return nil
	})
}

func TestGroupStartsAndStopsInOrder(t *testing.T) {
	var r recorder
	store, api, scheduler := r.component("store"), r.component("api"), r.component("scheduler")
	var g Group
	g.Add(store)
	g.Add(api, store)
	g.Add(scheduler, api)
	ctx, cancel := context.WithCancel(context.Background())
	g.OnReady = cancel
	if err := g.Run(ctx); err != nil {
		t.Fatalf("a cancelled group returned %v", err)
	}
	want := []string{"start store", "start api", "start scheduler", "stop scheduler", "stop api", "stop store"}
	if !slices.Equal(r.events, want) {
		t.Errorf("got %v, want %v", r.events, want)
	}
	for _, s := range g.Status() {
		if s.State != Stopped {
			t.Errorf("%s is %s after the end", s.Name, s.State)
		}
	}
}

func TestGroupStopsAllOnFailure(t *testing.T) {
	boom := errors.New("boom")
	for name, failing := range map[string]Component{
		"error": Func("failing", func(context.Context, func()) error { return boom }),
		"panic": Func("failing", func(context.Context, func()) error { panic(boom) }),
		"early": Func("failing", func(_ context.Context, ready func()) error { ready(); return nil }),
		"step":  Step("failing", func(context.Context) error { return boom }),
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			store := r.component("store")
			var g Group
			g.Add(store)
			g.Add(failing, store)
			g.Add(r.component("never"), Component(failing))
			err := g.Run(context.Background())
			if err == nil || !strings.HasPrefix(err.Error(), "failing: ") {
				t.Fatalf("got error %v", err)
			}
			if name == "early" {
				return // "never" may have started before the stop
			}
			if want := []string{"start store", "stop store"}; !slices.Equal(r.events, want) {
				t.Errorf("got %v, want %v", r.events, want)
			}
			if s := g.Status()[1]; s.State != Failed || s.Error == "" {
				t.Errorf("status of the failed component: %+v", s)
			}
		})
	}
}

// TestGroupKeepsFailure has a group that is asked to stop after one of its components has
// failed, and a group in which a library ends a component's goroutine.
func TestGroupKeepsFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stops := make(chan struct{})
	g := Group{OnStop: func() { close(stops) }}
	g.Add(Func("gone", func(context.Context, func()) error { runtime.Goexit(); return nil }))
	g.Add(Func("failing", func(context.Context, func()) error { return errors.New("boom") }))
	g.Add(Func("slow", func(ctx context.Context, _ func()) error {
		<-ctx.Done()
		cancel()
		return nil
	}))
	if err := g.Run(ctx); err == nil || err.Error() != "failing: boom" {
		t.Errorf("got %v", err)
	}
	<-stops
}

// TestGroupEndsAtOnce has a component that would stop only with the help of the one that failed.
func TestGroupEndsAtOnce(t *testing.T) {
	damaged := errors.New("damaged")
	release := make(chan struct{})
	var ended atomic.Bool
	g := Group{OnChange: func(s Status) {
		if ended.Load() {
			t.Errorf("after the end: %+v", s)
		}
	}}
	store := Func("store", func(_ context.Context, ready func()) error {
		ready()
		return AtOnce(damaged)
	})
	g.Add(store)
	g.Add(Func("client", func(context.Context, func()) error {
		<-release
		return nil
	}))
	if err := g.Run(t.Context()); !errors.Is(err, damaged) || err.Error() != "store: damaged" {
		t.Errorf("got %v", err)
	}
	ended.Store(true)
	close(release)
	<-g.members[1].stopped
}

func TestGroupStopsWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var g Group
	slow := Func("slow", func(ctx context.Context, _ func()) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	g.Add(slow)
	g.Add(Func("never", func(context.Context, func()) error {
		t.Error("started although its dependency was never ready")
		return nil
	}), slow)
	if err := g.Run(ctx); err != nil {
		t.Fatalf("got %v", err)
	}
}

func TestGroupAddRejectsUnknownDependency(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	var g Group
	g.Add(Step("b", nil), Step("a", nil))
}

func TestGroupNamesWhatDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting []string
		g := Group{
			StopTimeout: slowStop + time.Second,
			OnReady:     cancel,
			OnSlowStop:  func(names []string) { waiting = append(waiting, names...) },
		}
		base := Step("base", func(context.Context) error { return nil })
		g.Add(base)
		g.Add(Func("stubborn", func(_ context.Context, ready func()) error {
			ready()
			<-release
			return nil
		}), base)
		if err := g.Run(ctx); err == nil || !strings.HasSuffix(err.Error(), ": stubborn") {
			t.Errorf("got %v", err)
		}
		// Components that wait for their dependents are not named.
		if !slices.Equal(waiting, []string{"stubborn"}) {
			t.Errorf("during the stop: got %v waited for, want stubborn", waiting)
		}
	})
}

// TestReport has a component that reports faults, from its own context and from one that comes of it.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		g := Group{OnFault: func(s Status) { told = append(told, s.Name+"="+s.Fault) }}
		var inside context.Context
		g.Add(Func("other", func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return nil
		}))
		g.Add(Func("node", func(ctx context.Context, ready func()) error {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			inside = child
			ready()
			<-ctx.Done()
			return nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		synctest.Wait()
		Report(inside, nil)
		Report(inside, errors.New("deleted"))
		Report(inside, errors.New("deleted"))
		if s := g.Status(); s[1].Fault != "deleted" || s[1].State != Ready || s[0].Fault != "" {
			t.Errorf("got %+v", s)
		}
		Report(inside, errors.New("revoked"))
		Report(inside, nil)
		if s := g.Status()[1]; s.Fault != "" {
			t.Errorf("got %+v", s)
		}
		if want := []string{"node=deleted", "node=revoked", "node="}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		Report(t.Context(), errors.New("nobody listens"))
	})
}

// TestAbsent adds what a process does not have.
func TestAbsent(t *testing.T) {
	type part struct{ Component }
	var g Group
	absent := g.Add((*part)(nil))
	if absent != nil || g.Add(nil) != nil {
		t.Error("an absent component is there")
	}
	there := Func("there", func(context.Context, func()) error { return nil })
	if g.Add(there, absent, (*part)(nil)) != there {
		t.Error("Add does not return the component")
	}
	if all := g.Status(); len(all) != 1 || all[0].Name != "there" {
		t.Errorf("the group has %v", all)
	}
}
