package objectcache

import "k8s.io/client-go/tools/cache"

// Changes receives when an object has changed. Several changes count as one, because its
// receiver then compares everything.
type Changes chan struct{}

// NewChanges makes Changes.
func NewChanges() Changes { return make(Changes, 1) }

// Notify makes the receiver look at everything.
func (c Changes) Notify() {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Handler returns an informer's handler that notifies of changes to objects that matter,
// or that mattered before the change. same tells whether a change makes no difference.
// Without matters every object does, and without same every change makes a difference.
func Handler[T any](c Changes, matters func(T) bool, same func(before, now T) bool) cache.ResourceEventHandler {
	look := func(object any) {
		if typed, is := Latest(object).(T); is && (matters == nil || matters(typed)) {
			c.Notify()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: look,
		UpdateFunc: func(before, now any) {
			a, isBefore := before.(T)
			b, isNow := now.(T)
			if same != nil && isBefore && isNow && same(a, b) {
				return
			}
			look(before)
			look(now)
		},
		DeleteFunc: look,
	}
}
