package gatewaycontrol

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// object names an object of one of the kinds that only matter if somebody refers to them.
type object struct {
	kind string
	types.NamespacedName
}

// The kinds of objects. An EndpointSlice has the name of its Service.
const (
	serviceKind   = "Service"
	secretKind    = "Secret"
	configMapKind = "ConfigMap"
	podKind       = "Pod"
)

// relevance knows which objects matter. The cluster has many more Services and Secrets.
type relevance struct {
	mu    sync.Mutex
	names map[object]bool
	// changed are those that have changed since begin. It is nil outside of a run.
	changed map[object]bool
}

// touch notes that an object has changed, and tells whether that matters.
func (r *relevance) touch(o object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		r.changed[o] = true
	}
	return r.names[o]
}

// begin begins a run, which reads objects of names that are not known yet.
func (r *relevance) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = map[object]bool{}
}

// end ends a run that has read these objects. It tells whether one of them has changed in the
// meantime, and was not known to matter.
func (r *relevance) end(names map[object]bool) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.changed {
		again = again || names[o] && !r.names[o]
	}
	r.names, r.changed = names, nil
	return again
}
