package sources

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind whose objects only matter if somebody refers to them.
type Kind string

// The kinds of objects. An EndpointSlice is part of its Service.
const (
	Service   Kind = "Service"
	Secret    Kind = "Secret"
	ConfigMap Kind = "ConfigMap"
	Pod       Kind = "Pod"
)

// Names are names of objects, by their kind. An object is named if one of the lists has its name.
type Names map[Kind][]map[types.NamespacedName]bool

// object names an object.
type object struct {
	kind Kind
	types.NamespacedName
}

func (n Names) has(o object) bool {
	return slices.ContainsFunc(n[o.kind], func(names map[types.NamespacedName]bool) bool { return names[o.NamespacedName] })
}

// relevance knows which objects matter. The cluster has many more Services and Secrets.
type relevance struct {
	mu    sync.Mutex
	names Names
	// changed are those that have changed since begin. It is nil outside of a run.
	changed map[object]bool
}

// touch notes that an object has changed, and tells whether that matters.
func (r *relevance) touch(kind Kind, namespace, name string) bool {
	o := object{kind, types.NamespacedName{Namespace: namespace, Name: name}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		r.changed[o] = true
	}
	return r.names.has(o)
}

// begin begins a run, which reads objects of names that are not known yet.
func (r *relevance) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = map[object]bool{}
}

// end ends a run that has read these objects. It tells whether one of them has changed in the
// meantime, and was not known to matter.
func (r *relevance) end(names Names) (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.changed {
		again = again || names.has(o) && !r.names.has(o)
	}
	r.names, r.changed = names, nil
	return again
}
