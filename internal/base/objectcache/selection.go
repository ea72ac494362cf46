package objectcache

import (
	"reflect"
	"slices"

	"k8s.io/client-go/tools/cache"
)

// Selection says which objects of a kind a view shows. For handlers, an object that is no longer selected
// is gone, as in a watch with a selector.
type Selection struct {
	kind  reflect.Type
	keeps func(object any) bool
}

// Select returns the Selection of the objects of type T, a pointer, for which keeps returns true.
func Select[T any](keeps func(T) bool) Selection {
	return Selection{reflect.TypeFor[T](), func(object any) bool {
		typed, is := Latest(object).(T)
		return is && keeps(typed)
	}}
}

// selectedInformer is an informer of a view that shows only some of its objects.
type selectedInformer struct {
	*informer
	only Selection
}

func (i *selectedInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(handler, cache.HandlerOptions{})
}

func (i *selectedInformer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.informer.AddEventHandlerWithOptions(cache.FilteringResourceEventHandler{FilterFunc: i.only.keeps, Handler: handler}, options)
}

func (i *selectedInformer) GetStore() cache.Store { return i.GetIndexer() }

func (i *selectedInformer) GetIndexer() cache.Indexer {
	return selectedIndexer{i.informer.GetIndexer(), i.only.keeps}
}

// selectedIndexer is a shared indexer that shows only some objects.
type selectedIndexer struct {
	cache.Indexer
	keeps func(object any) bool
}

// selected leaves out the objects that are not selected. It may change the list, which is always a copy.
func (i selectedIndexer) selected(objects []any) []any {
	return slices.DeleteFunc(objects, func(object any) bool { return !i.keeps(object) })
}

func (i selectedIndexer) List() []any { return i.selected(i.Indexer.List()) }

func (i selectedIndexer) ListKeys() []string { return i.selectedKeys(i.Indexer.ListKeys()) }

func (i selectedIndexer) selectedKeys(keys []string) []string {
	return slices.DeleteFunc(keys, func(key string) bool {
		_, exists, _ := i.GetByKey(key)
		return !exists
	})
}

func (i selectedIndexer) Get(object any) (any, bool, error) {
	return i.one(i.Indexer.Get(object))
}

func (i selectedIndexer) GetByKey(key string) (any, bool, error) {
	return i.one(i.Indexer.GetByKey(key))
}

func (i selectedIndexer) one(object any, exists bool, err error) (any, bool, error) {
	if !exists || err != nil || !i.keeps(object) {
		return nil, false, err
	}
	return object, true, nil
}

func (i selectedIndexer) Index(name string, object any) ([]any, error) {
	found, err := i.Indexer.Index(name, object)
	return i.selected(found), err
}

func (i selectedIndexer) ByIndex(name, value string) ([]any, error) {
	found, err := i.Indexer.ByIndex(name, value)
	return i.selected(found), err
}

func (i selectedIndexer) IndexKeys(name, value string) ([]string, error) {
	keys, err := i.Indexer.IndexKeys(name, value)
	return i.selectedKeys(keys), err
}
