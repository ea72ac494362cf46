package customresources

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// detector is a RESTOptionsGetter that remembers what every object of a watch cache was when the
// watch cache got it.
type detector struct {
	generic.RESTOptionsGetter
	mu      sync.Mutex
	objects map[*unstructured.Unstructured][]byte
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (d *detector) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := d.RESTOptionsGetter.GetRESTOptions(resource, example)
	decorate := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string,
		key func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		noted := func(object runtime.Object) (labels.Set, fields.Set, error) {
			names, values, err := attributes(object)
			d.note(object.(*unstructured.Unstructured))
			return names, values, err
		}
		return decorate(config, prefix, key, newObject, newList, noted, triggers, indexers)
	}
	return options, err
}

func (d *detector) note(object *unstructured.Unstructured) {
	content, err := json.Marshal(object.Object)
	if err != nil {
		panic(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.objects[object] = content
}

// check wants no object to have changed.
func (d *detector) check(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for object, before := range d.objects {
		now, err := json.Marshal(object.Object)
		if err != nil || !bytes.Equal(now, before) {
			t.Errorf("somebody has changed an object of a watch cache, which shares its parts with others: it is %s, %v, and was %s", now, err, before)
		}
	}
}

// decoded returns the object of a JSON text, as decoders make it.
func decoded(t *testing.T, text []byte) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &object.Object); err != nil {
		t.Skip()
	}
	return object
}

func withEqualParts(t *testing.T, share storage.AttrFunc, object *unstructured.Unstructured) {
	t.Helper()
	if _, _, err := share(object); err != nil {
		t.Fatal(err)
	}
}

func noAttributes(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil }

// Equal parts of objects are one in memory, and different parts are not. Many more objects
// than are remembered stay what they were.
func TestEqualParts(t *testing.T) {
	share := WithEqualParts(noAttributes)
	route := func(i int) *unstructured.Unstructured {
		return decoded(t, fmt.Appendf(nil, `{"kind":"Route","metadata":{"name":"n%d","managedFields":[
			{"manager":"a","time":"t%[1]d","fieldsV1":{"f:spec":{"f:one":{},"f:two":{}}}}]},
			"spec":{"name":"n%[1]d","on":true,"none":null,"list":[1,1.5,{"weight":%[2]d}],"empty":{},"nothing":[]}}`, i, i%3))
	}
	var all []*unstructured.Unstructured
	for i := range 3 * knownValues {
		object := route(i)
		withEqualParts(t, share, object)
		all = append(all, object)
	}
	for i, object := range all {
		if want := route(i); !reflect.DeepEqual(object, want) {
			t.Fatalf("object %d is %v, want %v", i, object, want)
		}
	}
	part := func(object *unstructured.Unstructured, path ...any) (pointer uintptr) {
		value := any(object.Object)
		for _, step := range path {
			switch step := step.(type) {
			case string:
				value = value.(map[string]any)[step]
			case int:
				value = value.([]any)[step]
			}
		}
		return reflect.ValueOf(value).Pointer()
	}
	one := func(i int, path ...any) bool { return part(all[i], path...) == part(all[i+3], path...) }
	// Nothing has been forgotten yet when the first objects come.
	for path, same := range map[[4]any]bool{
		{"metadata", "managedFields", 0, "fieldsV1"}: true,
		{"metadata", "managedFields", 0}:             false,
		{"metadata"}:                                 false,
		{"spec"}:                                     false,
		{"spec", "list"}:                             true,
	} {
		steps := slices.DeleteFunc(path[:], func(step any) bool { return step == nil })
		if got := one(0, steps...); got != same {
			t.Errorf("%v: one for two objects: %t, want %t", steps, got, same)
		}
	}
	if part(all[0], "spec", "list") == part(all[1], "spec", "list") {
		t.Error("different lists are one")
	}
	// A full table forgets parts at random, so only most of the later objects share theirs.
	var shared int
	for i := range len(all) - 3 {
		if one(i, "metadata", "managedFields", 0, "fieldsV1") {
			shared++
		}
	}
	if shared < len(all)/2 {
		t.Errorf("of %d objects only %d have the fields of one before", len(all), shared)
	}
}

// Values that encode alike but are not the same stay what they are.
func TestUnequalParts(t *testing.T) {
	share := WithEqualParts(noAttributes)
	for _, value := range []any{
		int64(1), float64(1), "1", true, nil, map[string]any{}, map[string]any(nil), []any{}, []any(nil),
		map[string]any{"a": nil}, map[string]any{"b": nil}, []any{nil}, []any{[]any{}}, []any{"a", "b"}, []any{"b", "a"},
		map[string]any{"a": "b", "b": "a"}, map[string]any{"a": "a", "b": "b"}, "", int64(-1), json.Number("1"), []any{json.Number("1")},
	} {
		before := map[string]any{"spec": map[string]any{"value": value, "more": []any{value}}}
		object := &unstructured.Unstructured{Object: maps.Clone(before)}
		withEqualParts(t, share, object)
		if !reflect.DeepEqual(object.Object, before) {
			t.Errorf("%#v has become %#v", before, object.Object)
		}
	}
	known := &equalParts{values: map[uint64]any{1: map[string]any{"a": "b"}}}
	if got := known.remember([]any{"c"}, 1, collected{size: 1, small: true}); !reflect.DeepEqual(got.value, []any{"c"}) {
		t.Errorf("a value with the hash of another one has become %v", got.value)
	}
}
