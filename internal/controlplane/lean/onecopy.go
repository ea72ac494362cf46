package lean

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// oneCopy lets the informers of this process keep objects that are made of the API
// server's. The API server's watch cache has each object in its internal version. A
// conversion to another version copies hardly more than the outermost struct: strings,
// maps and most slices of both objects are the same memory. The API server itself
// converts objects of its watch cache in this way for each answer. Nobody changes
// objects in either cache.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/cacher/cacher.go Cacher.Get
//upstream:relies-on k8s.io/apimachinery/pkg/runtime/scheme.go Scheme.UnsafeConvertToVersion Scheme.convertToVersion
type oneCopy struct {
	mu    sync.RWMutex
	kinds map[schema.GroupKind]watchCache
}

// watchCache is that of one kind.
type watchCache struct {
	get     func(ctx context.Context, key string, options storage.GetOptions, into runtime.Object) error
	key     func(runtime.Object) (string, error)
	newFunc func() runtime.Object
}

func newOneCopy() *oneCopy { return &oneCopy{kinds: map[schema.GroupKind]watchCache{}} }

// add makes the watch cache of a kind known. Kinds of other schemes and custom resources,
// which the informers do not have, are ignored.
func (o *oneCopy) add(c watchCache) {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(c.newFunc())
	// The scheme also names the kind of any unstructured object.
	if err != nil || !legacyscheme.Scheme.Recognizes(kinds[0]) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kinds[kinds[0].GroupKind()] = c
}

// transform is a cache.TransformFunc. An object that the watch cache has, in the same
// revision, is replaced by one made of that. It drops managedFields.
func (o *oneCopy) transform(object any) (any, error) {
	if decoded, ok := object.(runtime.Object); ok {
		if shared := o.shared(decoded); shared != nil {
			object = shared
		}
	}
	return objectcache.WithoutManagedFields(object)
}

// shared returns an object that is equal to a decoded one, and made of the watch cache's.
// It returns nil if the watch cache has another revision, or none.
func (o *oneCopy) shared(decoded runtime.Object) runtime.Object {
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(decoded)
	if err != nil {
		return nil
	}
	o.mu.RLock()
	kept, ok := o.kinds[kinds[0].GroupKind()]
	o.mu.RUnlock()
	if !ok {
		return nil
	}
	key, err := kept.key(decoded)
	if err != nil {
		return nil
	}
	// This is a copy of the outermost struct. Resource version 0 asks nobody but the cache.
	internal := kept.newFunc()
	if err := kept.get(context.Background(), key, storage.GetOptions{ResourceVersion: "0"}, internal); err != nil {
		return nil
	}
	if !sameRevision(internal, decoded) {
		return nil
	}
	shared, err := legacyscheme.Scheme.UnsafeConvertToVersion(internal, kinds[0].GroupVersion())
	if err != nil {
		return nil
	}
	// Decoders of clients leave it empty.
	shared.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return shared
}

func sameRevision(a, b runtime.Object) bool {
	first, err := meta.Accessor(a)
	if err != nil {
		return false
	}
	second, err := meta.Accessor(b)
	return err == nil && first.GetUID() == second.GetUID() && first.GetResourceVersion() == second.GetResourceVersion()
}
