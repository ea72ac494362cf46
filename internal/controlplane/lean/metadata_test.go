package lean

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"
)

// metadataOf returns metadata whose parts no other object has.
func metadataOf(label, field string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: "name", Namespace: strings.Clone("default"), Labels: map[string]string{strings.Clone("app"): strings.Clone(label)},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: strings.Clone("kubectl"), Operation: metav1.ManagedFieldsOperationType(strings.Clone("Update")), APIVersion: strings.Clone("v1"),
			FieldsType: strings.Clone("FieldsV1"), FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"f:%s":{}}}`, field)), Subresource: "status",
		}},
	}
}

func attributesOf(object runtime.Object) (labels.Set, fields.Set, error) {
	return object.(metav1.ObjectMetaAccessor).GetObjectMeta().GetLabels(), nil, nil
}

// TestAttributes compares objects with what they were, and finds their equal parts in one place.
func TestAttributes(t *testing.T) {
	attributes := New().Attributes(attributesOf)
	get := func(label, field string) *core.Service {
		t.Helper()
		service := &core.Service{ObjectMeta: metadataOf(label, field)}
		before := service.DeepCopy()
		set, _, err := attributes(service)
		if err != nil || set["app"] != label {
			t.Fatalf("got labels %v: %v", set, err)
		}
		if !equality.Semantic.DeepEqual(service, before) {
			t.Errorf("got %+v, want %+v", service, before)
		}
		return service
	}
	place := func(s *core.Service) (labels uintptr, manager *byte, fields *metav1.FieldsV1) {
		entry := s.ManagedFields[0]
		return reflect.ValueOf(s.Labels).Pointer(), unsafe.StringData(entry.Manager), entry.FieldsV1
	}
	firstLabels, firstManager, firstFields := place(get("a", "ports"))
	equalLabels, equalManager, equalFields := place(get("a", "ports"))
	if equalLabels != firstLabels || equalManager != firstManager || equalFields != firstFields {
		t.Error("equal parts are in memory twice")
	}
	otherLabels, _, otherFields := place(get("b", "type"))
	if otherLabels == firstLabels || otherFields == firstFields {
		t.Error("other parts are taken for equal ones")
	}
}

// TestAttributesForget gives a watch cache more different parts than it may remember.
func TestAttributesForget(t *testing.T) {
	known := newEqualMetadata()
	for i := range 3 * knownMetadata {
		metadata := metadataOf(fmt.Sprint(i), fmt.Sprint(i))
		known.share(&metadata)
		if metadata.Labels["app"] != fmt.Sprint(i) {
			t.Fatalf("object %d has the labels %v", i, metadata.Labels)
		}
	}
	long := metadataOf(strings.Repeat("a", largestMetadata), strings.Repeat("b", largestMetadata))
	known.share(&long)
	if len(known.labels) > knownMetadata || len(known.managed) > knownMetadata {
		t.Errorf("%d sets of labels and %d of managed fields are remembered", len(known.labels), len(known.managed))
	}
	for text := range known.managed {
		if len(text) > largestMetadata {
			t.Error("managed fields are remembered that are too long")
		}
	}
}

// TestAttributesOfOthers passes on what has no metadata of its own.
func TestAttributesOfOthers(t *testing.T) {
	attributes := New().Attributes(func(runtime.Object) (labels.Set, fields.Set, error) { return nil, nil, nil })
	custom := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}}}
	for _, object := range []runtime.Object{custom, &metav1.Status{}, &core.Service{}} {
		if _, _, err := attributes(object); err != nil {
			t.Error(err)
		}
	}
}
