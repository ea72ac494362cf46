package objectcache

import "k8s.io/client-go/tools/cache"

// Latest returns the object that an informer's handler was called with. If the informer has missed
// a deletion, the object is in the last state that the informer knew.
func Latest(object any) any {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return object
}

// OnChange returns an informer's handler that calls do with the newest state of every object that
// changes. After a deletion, do gets what DeleteFunc of cache.ResourceEventHandlerFuncs gets.
func OnChange(do func(object any)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    do,
		UpdateFunc: func(_, object any) { do(object) },
		DeleteFunc: do,
	}
}

// Each returns an informer's handler that calls is with the newest state of every object of type T,
// and gone with the key of every object that was deleted: NAMESPACE/NAME, or the name alone of an
// object without a namespace.
func Each[T any](is func(T), gone func(key string)) cache.ResourceEventHandler {
	set := func(object any) {
		if typed, ok := object.(T); ok {
			is(typed)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, now any) { set(now) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				gone(key)
			}
		},
	}
}
