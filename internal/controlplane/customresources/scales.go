package customresources

import (
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
)

// scales are what upstream's handler keeps to serve the subresource scale. The handler makes
// it for each version of a kind, also if the definition has no such subresource. The types of
// scales alone take 130 KiB each time. Upstream has no function for what forget does, so this
// reaches for the private fields.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go crdHandler crdInfo crdStorageMap crdHandler.serveScale
type scales struct {
	// kinds are all that the handler remembers. It replaces the whole map while it has the lock.
	lock  *sync.Mutex
	kinds *atomic.Value
}

// scopes are what serves a subresource, by the versions of a kind.
type scopes = map[string]*handlers.RequestScope

func scalesOf(handler upstreamHandler) (scales, error) {
	found, in := scales{}, reflect.ValueOf(handler).Elem()
	for name, into := range map[string]any{"customStorageLock": &found.lock, "customStorage": &found.kinds} {
		field, pointer := in.FieldByName(name), reflect.ValueOf(into).Elem()
		if !field.IsValid() || field.Type() != pointer.Type().Elem() {
			return scales{}, fmt.Errorf("a %s has no %s of the kind that is expected", in.Type(), name)
		}
		pointer.Set(reflect.NewAt(field.Type(), field.Addr().UnsafePointer()))
	}
	kinds := reflect.TypeOf(found.kinds.Load())
	if kinds.Kind() != reflect.Map || kinds.Elem().Kind() != reflect.Pointer {
		return scales{}, fmt.Errorf("a %s keeps its kinds in a %s", in.Type(), kinds)
	}
	kind := kinds.Elem().Elem()
	for name, want := range map[string]reflect.Type{
		"spec":               reflect.TypeFor[*apiextensionsv1.CustomResourceDefinitionSpec](),
		"scaleRequestScopes": reflect.TypeFor[scopes](),
	} {
		if field, ok := kind.FieldByName(name); !ok || field.Type != want {
			return scales{}, fmt.Errorf("a %s has no %s of the kind that is expected", kind, name)
		}
	}
	return found, nil
}

// forget drops what serves scale where there is none. The handler has the lock while it makes
// a kind, so forget waits until the kind is there.
func (s scales) forget() {
	s.lock.Lock()
	defer s.lock.Unlock()
	all := reflect.ValueOf(s.kinds.Load())
	lean, changed := reflect.MakeMapWithSize(all.Type(), all.Len()), false
	for id, kind := range all.Seq2() {
		had, has := *scaleScopes(kind), scopes{}
		for _, version := range definitionOf(kind).Versions {
			if version.Subresources != nil && version.Subresources.Scale != nil && had[version.Name] != nil {
				has[version.Name] = had[version.Name]
			}
		}
		if len(has) < len(had) {
			// A copy: requests that run now read the old one.
			without := reflect.New(kind.Type().Elem())
			without.Elem().Set(kind.Elem())
			*scaleScopes(without) = has
			kind, changed = without, true
		}
		lean.SetMapIndex(id, kind)
	}
	if changed {
		s.kinds.Store(lean.Interface())
	}
}

func scaleScopes(kind reflect.Value) *scopes {
	return (*scopes)(kind.Elem().FieldByName("scaleRequestScopes").Addr().UnsafePointer())
}

func definitionOf(kind reflect.Value) *apiextensionsv1.CustomResourceDefinitionSpec {
	return *(**apiextensionsv1.CustomResourceDefinitionSpec)(kind.Elem().FieldByName("spec").Addr().UnsafePointer())
}
