package routing

import (
	"maps"
	"reflect"
)

// With returns the state after an update. It changes neither s nor the update, and shares
// values with both. A value that is equal to the one in s stays the same pointer, also if the
// update is Whole. So a reader compares pointers to see what has changed. If nothing has
// changed, With returns s. A nil s is an empty state.
func (s *State) With(u Update) *State {
	before := s
	if before == nil {
		before = &State{}
	}
	now, changed := &State{}, s == nil
	now.Sockets = merge(before.Sockets, u.Sockets, u.Whole, &changed)
	now.Routes = merge(before.Routes, u.Routes, u.Whole, &changed)
	now.Backends = merge(before.Backends, u.Backends, u.Whole, &changed)
	now.Certificates = merge(before.Certificates, u.Certificates, u.Whole, &changed)
	if !changed {
		return s
	}
	return now
}

// merge returns the values after a change, and sets changed if they are not the same.
func merge[V any](before, change map[string]*V, whole bool, changed *bool) map[string]*V {
	if len(change) == 0 && !whole {
		return before
	}
	now := make(map[string]*V, max(len(before), len(change)))
	if !whole {
		maps.Copy(now, before)
	}
	for name, value := range change {
		switch {
		case value == nil:
			delete(now, name)
		case equal(before[name], value):
			now[name] = before[name]
		default:
			now[name] = value
		}
	}
	if maps.Equal(now, before) {
		return before
	}
	*changed = true
	return now
}

// Diff returns the update that leads from one state to another: old.With(Diff(old, new)) is
// equal to new. It shares the values of new. If old is nil, the update is Whole.
func Diff(old, new *State) Update {
	if old == nil {
		return Update{Whole: true, State: *new}
	}
	return Update{State: State{
		Sockets:      diff(old.Sockets, new.Sockets),
		Routes:       diff(old.Routes, new.Routes),
		Backends:     diff(old.Backends, new.Backends),
		Certificates: diff(old.Certificates, new.Certificates),
	}}
}

// diff returns the values that are new, and nil for those that are gone. It returns nil if
// there are none.
func diff[V any](old, now map[string]*V) map[string]*V {
	var change map[string]*V
	note := func(name string, value *V) {
		if change == nil {
			change = map[string]*V{}
		}
		change[name] = value
	}
	for name, value := range now {
		if value != nil && !equal(old[name], value) {
			note(name, value)
		}
	}
	for name, value := range old {
		if value != nil && now[name] == nil {
			note(name, nil)
		}
	}
	return change
}

// equal compares two values. Most are the same pointer, or differ early.
func equal[V any](a, b *V) bool {
	return a == b || a != nil && b != nil && reflect.DeepEqual(a, b)
}

// IsEmpty tells whether an update changes nothing, whatever the state is.
func (u *Update) IsEmpty() bool {
	return !u.Whole && len(u.Sockets)+len(u.Routes)+len(u.Backends)+len(u.Certificates) == 0
}
