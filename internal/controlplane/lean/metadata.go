package lean

import (
	"hash/maphash"
	"maps"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

const (
	// knownMetadata is how many sets of labels, and how many sets of managed fields, are remembered of a
	// kind. largestMetadata is the size of the largest one in bytes.
	knownMetadata   = 128
	largestMetadata = 2 << 10
)

// Attributes returns an AttrFunc for the watch cache of a kind. The watch cache calls it once for each
// object, just before it keeps the object. The function replaces the labels and the managed fields of an
// object by those of another object, if they are equal. Most objects of a kind have the same managed
// fields, and most versions of an object have the labels of the version before. Nobody changes an object
// of a watch cache: what is to be changed is copied first. Custom resources stay as they are: package
// customresources has its own way.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/watch_cache.go watchCache.processEvent watchCache.Replace
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/delegator.go CacheDelegator.GuaranteedUpdate CacheDelegator.Delete
func (h *Hooks) Attributes(attributes storage.AttrFunc) storage.AttrFunc {
	if h == nil {
		return attributes
	}
	known := newEqualMetadata()
	return func(object runtime.Object) (labels.Set, fields.Set, error) {
		if accessor, ok := object.(metav1.ObjectMetaAccessor); ok {
			if metadata, ok := accessor.GetObjectMeta().(*metav1.ObjectMeta); ok && metadata != nil {
				known.share(metadata)
			}
		}
		return attributes(object)
	}
}

// equalMetadata are parts of the metadata of a kind's objects. It is for one goroutine.
type equalMetadata struct {
	seed maphash.Seed
	// labels are sets by their hash. An equal hash does not mean that sets are equal.
	labels  map[uint64]map[string]string
	managed map[string]*metav1.FieldsV1
}

func newEqualMetadata() *equalMetadata {
	return &equalMetadata{seed: maphash.MakeSeed(), labels: map[uint64]map[string]string{}, managed: map[string]*metav1.FieldsV1{}}
}

// share replaces parts of an object's metadata by known parts.
func (e *equalMetadata) share(metadata *metav1.ObjectMeta) {
	metadata.Namespace = unique.Make(metadata.Namespace).Value()
	metadata.Labels = e.set(metadata.Labels)
	for i := range metadata.ManagedFields {
		entry := &metadata.ManagedFields[i]
		entry.Manager = unique.Make(entry.Manager).Value()
		entry.Operation = unique.Make(entry.Operation).Value()
		entry.APIVersion = unique.Make(entry.APIVersion).Value()
		entry.FieldsType = unique.Make(entry.FieldsType).Value()
		entry.FieldsV1 = e.fields(entry.FieldsV1)
	}
}

// set returns the known set of labels that is equal to another.
func (e *equalMetadata) set(set map[string]string) map[string]string {
	if len(set) == 0 {
		return set
	}
	var hash uint64
	size := 0
	for key, value := range set {
		hash += maphash.Comparable(e.seed, [2]string{key, value})
		size += len(key) + len(value)
	}
	known, found := e.labels[hash]
	switch {
	case found && maps.Equal(known, set):
		return known
	case size <= largestMetadata:
		makeRoom(e.labels)
		e.labels[hash] = set
	}
	return set
}

// fields returns the known managed fields that are equal to others.
func (e *equalMetadata) fields(managed *metav1.FieldsV1) *metav1.FieldsV1 {
	text := managed.GetRawBytes()
	if len(text) == 0 || len(text) > largestMetadata {
		return managed
	}
	if known, found := e.managed[string(text)]; found {
		return known
	}
	makeRoom(e.managed)
	e.managed[string(text)] = managed
	return managed
}

// makeRoom deletes one entry of a full table, whichever comes first. If the entry is a common one, the
// next object brings it back.
func makeRoom[K comparable, V any](table map[K]V) {
	if len(table) < knownMetadata {
		return
	}
	for key := range table {
		delete(table, key)
		return
	}
}
