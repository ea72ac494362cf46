// Package published has values that others watch: what a component works out, and what servers
// and nodes follow.
package published

import (
	"context"
	"fmt"
	"sync"
)

// ErrEnded is the end of a watch that the caller has not ended.
var ErrEnded = fmt.Errorf("this server is stopping: %w", context.Canceled)

// Value is the newest of several values. Its zero value has the zero T. It is safe for concurrent
// use. Nobody may change what a T points to.
type Value[T any] struct {
	mu     sync.Mutex
	newest T
	// changed is closed when newest changes. It is nil while nobody waits for that.
	changed chan struct{}
}

// Set makes a value the newest one, and tells all that wait, even if it is equal to the one before.
func (v *Value[T]) Set(newest T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.newest = newest
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// Get returns the newest value, and a channel that is closed when there is a newer one.
func (v *Value[T]) Get() (newest T, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.newest, v.changed
}

// Watch calls apply with the newest value, and again after each change. While apply runs, changes
// are put together. Watch returns nil when ctx ends, ErrEnded when ended is closed, and otherwise
// the error of apply.
func (v *Value[T]) Watch(ctx context.Context, ended <-chan struct{}, apply func(T) error) error {
	for {
		newest, changed := v.Get()
		if err := apply(newest); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			return ErrEnded
		case <-changed:
		}
	}
}
