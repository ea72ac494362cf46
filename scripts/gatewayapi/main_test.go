package main

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/kedge-dev/kedge/manifests"
)

// TestEmbedded wants the embedded definitions to be those of the module.
func TestEmbedded(t *testing.T) {
	want, err := definitions()
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifests.GatewayDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(got, []byte("\n")), bytes.TrimSpace(want)) {
		t.Errorf("the embedded definitions of the Gateway API are not those of %s in go.mod: run make helpers", module)
	}
}

func TestSentence(t *testing.T) {
	for text, want := range map[string]string{
		"Name is the name. It must be\nshort.":         "Name is the name.",
		"Kind is kind of\nthe referent.":               "Kind is kind of the referent.",
		"Rules are:\n\n* one":                          "Rules are:",
		"See example.com for more. <gateway:internal>": "See example.com for more.",
		"": "",
	} {
		if got := sentence(text); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

// TestShorten has a version with fields of several depths, one with a field that is called
// description, and one that is not served.
func TestShorten(t *testing.T) {
	definition := map[string]any{}
	decode := func(text string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	decode(`{"spec": {"versions": [
		{"name": "v1", "served": true, "schema": {"description": "Zero. More.", "properties": {"a": {"description": "One. More.", "properties": {
			"b": {"properties": {"c": {"description": "Three. More.", "items": {"description": "Items.", "properties": {"d": {"description": "Four.", "type": "string"}}}}}}}}}}},
		{"name": "v1beta1", "served": true, "schema": {"description": "Zero.", "properties": {"description": {"description": "One.", "type": "string"}}}},
		{"name": "v1alpha2", "served": false, "schema": {"openAPIV3Schema": {"properties": {"a": {}}}}}
	]}}`, &definition)
	var want map[string]any
	decode(`{"spec": {"versions": [
		{"name": "v1", "served": true, "schema": {"description": "Zero.", "properties": {"a": {"description": "One.", "properties": {
			"b": {"properties": {"c": {"description": "Three.", "items": {"description": "Items.", "properties": {"d": {"type": "string"}}}}}}}}}}},
		{"name": "v1beta1", "served": true, "schema": {"properties": {"description": {"type": "string"}}}},
		{"name": "v1alpha2", "served": false, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}
	]}}`, &want)
	if err := shorten(definition); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(definition, want) {
		t.Errorf("got %v", definition)
	}
}
