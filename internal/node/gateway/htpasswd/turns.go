package htpasswd

import (
	"context"
	"slices"
	"sync"
	"time"
)

// turns decide who checks a password next. So many checks run at a time as there are turns, and
// nobody can take those of others: if several namespaces wait, they take turns, in each namespace
// its lists do, and for each list its clients. A flood of wrong passwords holds up only its own
// client, and then its own list, and its own namespace.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting line
}

// place is where a check stands: its namespace, its list and its client.
type place [3]string

// line is a line of checks, or of lines that take turns.
type line struct {
	// checks are the ones of the last part of a place, the first one first.
	checks []*check
	// lines are those of the next part of a place, and order has the keys of those that are not
	// empty, in the order of their turns.
	lines map[string]*line
	order []string
}

// check is a check that waits. Its channel is closed when it has its turn.
type check struct{ turn chan struct{} }

// take waits for a turn. It returns ErrBusy if there is none in time, and the error of ctx if
// that ends before. After nil, the caller calls give.
func (t *turns) take(ctx context.Context, at place) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	own := &check{make(chan struct{})}
	t.waiting.add(own, at[:])
	t.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var err error
	select {
	case <-own.turn:
		return nil
	case <-timer.C:
		err = ErrBusy
	case <-ctx.Done():
		err = ctx.Err()
	}
	t.mu.Lock()
	gone := t.waiting.remove(own, at[:])
	t.mu.Unlock()
	if !gone {
		t.give() // The turn has come at this moment.
	}
	return err
}

// give gives a turn back.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if next := t.waiting.next(); next != nil {
		close(next.turn)
		return
	}
	t.free++
}

// add puts a check at the end of the line of its place.
func (l *line) add(c *check, at []string) {
	if len(at) == 0 {
		l.checks = append(l.checks, c)
		return
	}
	below := l.lines[at[0]]
	if below == nil {
		if l.lines == nil {
			l.lines = map[string]*line{}
		}
		below = &line{}
		l.lines[at[0]] = below
		l.order = append(l.order, at[0])
	}
	below.add(c, at[1:])
}

// next removes the check that has the next turn, and returns it. It returns nil if there is none.
func (l *line) next() *check {
	if len(l.order) == 0 {
		if len(l.checks) == 0 {
			return nil
		}
		first := l.checks[0]
		l.checks = l.checks[1:]
		return first
	}
	key := l.order[0]
	l.order = l.order[1:]
	below := l.lines[key]
	first := below.next()
	if below.isEmpty() {
		delete(l.lines, key)
	} else {
		l.order = append(l.order, key)
	}
	return first
}

// remove removes a check that does not wait any more. It returns false if the check has had its
// turn.
func (l *line) remove(c *check, at []string) bool {
	if len(at) == 0 {
		index := slices.Index(l.checks, c)
		if index < 0 {
			return false
		}
		l.checks = slices.Delete(l.checks, index, index+1)
		return true
	}
	below := l.lines[at[0]]
	if below == nil || !below.remove(c, at[1:]) {
		return false
	}
	if below.isEmpty() {
		delete(l.lines, at[0])
		l.order = slices.DeleteFunc(l.order, func(key string) bool { return key == at[0] })
	}
	return true
}

func (l *line) isEmpty() bool { return len(l.checks) == 0 && len(l.order) == 0 }
