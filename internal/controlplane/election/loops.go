package election

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Loops are loops that only one server runs at a time.
type Loops interface {
	// Lead runs the loops until ctx ends, and then returns nil, or until they
	// fail. It calls ready when they work. It is called again in each term.
	Lead(ctx context.Context, ready func()) error
}

// Follower is implemented by loops that have something to do while they do not run here.
type Follower interface {
	// Follow does that until ctx ends.
	Follow(ctx context.Context) error
}

// Clients makes the clients of loops: for the kinds of Kubernetes, and for custom ones.
func Clients(config *rest.Config) (kubernetes.Interface, dynamic.Interface, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	custom, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client of custom resources: %w", err)
	}
	return api, custom, nil
}

// RunLoops runs loops in every term of this server, until ctx ends or until the
// loops fail. If e is nil there is no other server, and the loops always run. It
// calls ready once, when the loops work here or when another server is known to
// lead.
func (e *Election) RunLoops(ctx context.Context, loops Loops, ready func()) error {
	if e == nil {
		return loops.Lead(ctx, ready)
	}
	ready = sync.OnceFunc(ready)
	for {
		term, err := e.await(ctx, loops, ready)
		if term == nil {
			return err
		}
		err = lead(ctx, term, loops, ready)
		term.loops.Done()
		if err != nil {
			return err
		}
	}
}

// await follows until this server leads. It returns nil if ctx ends first.
func (e *Election) await(ctx context.Context, loops Loops, ready func()) (*term, error) {
	following, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- follow(following, loops) }()
	for {
		current, leader, changed := e.join()
		if current == nil && leader != "" && leader != e.identity {
			ready()
		}
		if current == nil {
			select {
			case <-changed:
				continue
			case err := <-ended:
				cancel()
				if err == nil && ctx.Err() == nil {
					err = errors.New("stopped following without being asked to")
				}
				return nil, err
			case <-ctx.Done():
			}
		}
		cancel()
		err := <-ended
		if current != nil && (err != nil || ctx.Err() != nil) {
			current.loops.Done()
			current = nil
		}
		return current, err
	}
}

// follow does until ctx ends what loops need while they do not run here.
func follow(ctx context.Context, loops Loops) error {
	if follower, ok := loops.(Follower); ok {
		return follower.Follow(ctx)
	}
	<-ctx.Done()
	return nil
}

// join returns the current term, which then waits for Done of its loops. Outside
// of a term it returns nil, the server last seen to lead, and a channel that is
// closed when that changes.
func (e *Election) join() (*term, string, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// A term that has ended does not wait for new loops.
	if e.term != nil && e.term.ctx.Err() == nil {
		e.term.loops.Add(1)
		return e.term, "", nil
	}
	return nil, e.leader, e.changed
}

// lead runs loops until the term or ctx ends.
func lead(ctx context.Context, term *term, loops Loops, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(term.ctx, cancel)()
	err := loops.Lead(ctx, ready)
	if err == nil && ctx.Err() == nil {
		err = errors.New("ended without being asked to")
	}
	return err
}
