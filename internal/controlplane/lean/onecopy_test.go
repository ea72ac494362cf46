package lean

import (
	"bytes"
	"context"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kapitesting "k8s.io/kubernetes/pkg/api/testing"
	"k8s.io/kubernetes/pkg/apis/core"
)

// keep makes a copies know a watch cache that has one object.
func keep(copies *oneCopy, object runtime.Object) {
	copies.add(watchCache{
		get: func(_ context.Context, key string, options storage.GetOptions, into runtime.Object) error {
			if key != "key" || options.ResourceVersion != "0" {
				return storage.NewKeyNotFoundError(key, 0)
			}
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(object).Elem())
			return nil
		},
		key:     func(runtime.Object) (string, error) { return "key", nil },
		newFunc: func() runtime.Object { return reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object) },
	})
}

// TestOneCopyOfAllKinds compares what informers would decode with what they get, for each
// kind with random content.
func TestOneCopyOfAllKinds(t *testing.T) {
	fuzz := fuzzer.FuzzerFor(kapitesting.FuzzerFuncs, rand.NewSource(1), legacyscheme.Codecs)
	info, ok := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	encode := func(object any) []byte {
		text, err := runtime.Encode(info.Serializer, object.(runtime.Object))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	decode := func(text []byte) runtime.Object {
		object, _, err := info.Serializer.Decode(text, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	kinds := 0
	for gvk := range legacyscheme.Scheme.AllKnownTypes() {
		internalKind := schema.GroupVersionKind{Group: gvk.Group, Version: runtime.APIVersionInternal, Kind: gvk.Kind}
		if gvk.Version == runtime.APIVersionInternal || !legacyscheme.Scheme.Recognizes(internalKind) || strings.HasSuffix(gvk.Kind, "Options") {
			continue
		}
		internal, err := legacyscheme.Scheme.New(internalKind)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := meta.Accessor(internal); err != nil {
			continue // it cannot be in a cache
		}
		fuzz.Fill(internal)
		accessor, _ := meta.Accessor(internal)
		accessor.SetUID("uid")
		accessor.SetResourceVersion("7")
		sent, err := legacyscheme.Scheme.ConvertToVersion(internal, gvk.GroupVersion())
		if err != nil {
			t.Fatalf("%s: %v", gvk, err)
		}
		text := encode(sent)
		// The watch cache decodes it too, from the datastore.
		if internal, err = legacyscheme.Scheme.ConvertToVersion(decode(text), internalKind.GroupVersion()); err != nil {
			t.Fatalf("%s: %v", gvk, err)
		}
		before, decoded := internal.DeepCopyObject(), decode(text)
		decoded.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})

		copies := newOneCopy()
		keep(copies, internal)
		got, err := copies.transform(decoded.DeepCopyObject())
		if err != nil {
			t.Fatalf("%s: %v", gvk, err)
		}
		// Former names of a kind in other groups are not shared.
		first, _, err := legacyscheme.Scheme.ObjectKinds(internal)
		if err != nil {
			t.Fatal(err)
		}
		if shared := copies.shared(decoded) != nil; shared != (first[0].Group == gvk.Group) {
			t.Errorf("%s: it is shared: %t", gvk, shared)
		}
		want, _ := newOneCopy().transform(decoded)
		if a, b := encode(got), encode(want); !bytes.Equal(a, b) {
			t.Errorf("%s: got %q, want %q", gvk, a, b)
		}
		if !equality.Semantic.DeepEqual(internal, before) {
			t.Errorf("%s: the watch cache's object has changed", gvk)
		}
		kinds++
	}
	if kinds < 60 {
		t.Errorf("compared only %d kinds", kinds)
	}
}

// TestOneCopy shares the memory of equal revisions only.
func TestOneCopy(t *testing.T) {
	object := metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}
	kept := &core.ConfigMap{ObjectMeta: object, Data: map[string]string{"key": "value"}}
	copies := newOneCopy()
	keep(copies, kept)
	for name, test := range map[string]struct {
		change func(*corev1.ConfigMap)
		shared bool
	}{
		"the same revision": {func(*corev1.ConfigMap) {}, true},
		"another revision":  {func(c *corev1.ConfigMap) { c.ResourceVersion = "6" }, false},
		"another object":    {func(c *corev1.ConfigMap) { c.UID = "2" }, false},
	} {
		decoded := &corev1.ConfigMap{ObjectMeta: object, Data: map[string]string{"key": strings.Clone("value")}}
		test.change(decoded)
		got, err := copies.transform(decoded)
		if err != nil {
			t.Fatal(err)
		}
		c := got.(*corev1.ConfigMap)
		if shared := unsafe.StringData(c.Data["key"]) == unsafe.StringData(kept.Data["key"]); shared != test.shared {
			t.Errorf("%s: shared is %t", name, shared)
		}
		if c.ManagedFields != nil || c.Kind != "" {
			t.Errorf("%s: got %v", name, c)
		}
	}
	if len(kept.ManagedFields) != 1 {
		t.Error("the watch cache's object has lost its managedFields")
	}
	if got, _ := copies.transform(&corev1.Secret{}); got == nil {
		t.Error("a kind without a watch cache got lost")
	}
}

// TestOneCopyIgnores has a custom resource. Its watch cache goes with its definition, so
// nobody else may keep it.
func TestOneCopyIgnores(t *testing.T) {
	copies := newOneCopy()
	widget := &unstructured.Unstructured{}
	widget.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	copies.add(watchCache{newFunc: func() runtime.Object { return widget }})
	if len(copies.kinds) != 0 {
		t.Errorf("copies keep %d watch caches", len(copies.kinds))
	}
}
