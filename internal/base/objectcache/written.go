package objectcache

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Written remembers what a controller has written into objects, until its cache has the newer
// versions. Turn must be called first. One goroutine uses it.
type Written[T any] struct {
	// last is that of the turn before.
	last, now map[types.UID]write[T]
}

// write is a value that was written over a version of an object. If the cache still has this
// version, it is behind, or the API server has changed nothing.
type write[T any] struct {
	over  string
	value T
}

// Turn begins to look at all objects. Objects that nobody looked at in the turn before are
// forgotten.
func (w *Written[T]) Turn() { w.last, w.now = w.now, map[types.UID]write[T]{} }

// Get returns what was written over the version of an object that the cache has. The second result
// is false if nothing was written, or if the cache has a newer version.
func (w *Written[T]) Get(cached metav1.Object) (value T, is bool) {
	last, is := w.last[cached.GetUID()]
	if !is || last.over != cached.GetResourceVersion() {
		return value, false
	}
	w.now[cached.GetUID()] = last
	return last.value, true
}

// Set notes that a value was written over an object: over that of the cache, or over the one that
// Get has returned in this turn.
func (w *Written[T]) Set(object metav1.Object, value T) {
	over := object.GetResourceVersion()
	if last, is := w.now[object.GetUID()]; is {
		over = last.over
	}
	w.now[object.GetUID()] = write[T]{over, value}
}
