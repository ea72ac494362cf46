package customresources

import (
	"fmt"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// template is a schema that definitions have in common. Each call makes it anew.
func template() apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{
		Type: "object", Description: "the template of a pod",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"name": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}},
			"env": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"value": {Type: "string"}},
			}}},
			"either": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{JSONSchemas: []apiextensionsv1.JSONSchemaProps{{Type: "string"}}}},
			"open":   {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true}, Required: []string{"open"}},
			"labels": {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{
				Allows: true, Schema: &apiextensionsv1.JSONSchemaProps{Type: "string", Description: "a label"},
			}},
		},
	}
}

// definition returns a definition with one version, whose objects have the fields.
func definition(name string, fields map[string]apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + ".example.com", UID: types.UID(name), Generation: 1,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: fields},
			}}},
		},
	}
}

// fieldsOf returns the address of the map of a field's fields.
func fieldsOf(d *apiextensionsv1.CustomResourceDefinition, field string) uintptr {
	return reflect.ValueOf(d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties[field].Properties).Pointer()
}

// A transform does not change what a definition says, and equal parts of definitions become
// one, also with definitions from before the table was dropped.
func TestShare(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	s := &sharing{store: store}
	share := func(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		want := d.DeepCopy()
		want.ManagedFields = nil
		object, err := s.transform(d)
		if err != nil {
			t.Fatal(err)
		}
		got := object.(*apiextensionsv1.CustomResourceDefinition)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("the transform changed a definition to %v, want %v", got, want)
		}
		if err := store.Add(got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	other := template()
	other.Properties["name"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"y"`)}}
	first := share(definition("first", map[string]apiextensionsv1.JSONSchemaProps{"a": template(), "b": template(), "c": other}))
	if fieldsOf(first, "a") != fieldsOf(first, "b") {
		t.Error("a definition has two copies of equal parts")
	}
	if fieldsOf(first, "a") == fieldsOf(first, "c") {
		t.Error("parts with different defaults are one")
	}
	before := fmt.Sprint(first)
	second := share(definition("second", map[string]apiextensionsv1.JSONSchemaProps{"a": template()}))
	s.parts = nil
	third := share(definition("third", map[string]apiextensionsv1.JSONSchemaProps{"b": template(), "d": {Type: "string"}}))
	if fieldsOf(first, "a") != fieldsOf(second, "a") || fieldsOf(first, "a") != fieldsOf(third, "b") {
		t.Error("two definitions have copies of equal parts")
	}
	if after := fmt.Sprint(first); after != before {
		t.Errorf("sharing changed another definition from %s to %s", before, after)
	}
}

// A definition of the same generation keeps its spec. One with another UID does not.
func TestShareGenerations(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	s := &sharing{store: store}
	first := definition("first", map[string]apiextensionsv1.JSONSchemaProps{"a": template()})
	shared, err := s.transform(first)
	if err != nil {
		t.Fatal(err)
	}
	first = shared.(*apiextensionsv1.CustomResourceDefinition)
	if err := store.Add(first); err != nil {
		t.Fatal(err)
	}
	s.parts = nil
	status := definition("first", map[string]apiextensionsv1.JSONSchemaProps{"a": template()})
	status.Status.StoredVersions = []string{"v1"}
	if _, err := s.transform(status); err != nil {
		t.Fatal(err)
	}
	if s.parts != nil || fieldsOf(status, "a") != fieldsOf(first, "a") || len(status.Status.StoredVersions) != 1 {
		t.Error("a change of the status did not keep the spec")
	}
	again := definition("first", map[string]apiextensionsv1.JSONSchemaProps{"z": template()})
	again.UID = "again"
	object, err := s.transform(again)
	if err != nil {
		t.Fatal(err)
	}
	if fieldsOf(object.(*apiextensionsv1.CustomResourceDefinition), "z") != fieldsOf(first, "a") {
		t.Error("a definition of another UID got another spec, or its own copy")
	}
}
