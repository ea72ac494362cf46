package customresources

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Server-side apply knows the types of metadata: each manager has entries of its own in
// lists and maps.
func TestApply(t *testing.T) {
	c := newTestCluster(t)
	c.define(widgetDefinition("1", 1, "red"))
	client := c.Resource(widgets).Namespace("a")
	for manager, metadata := range map[string]string{
		"first":  `{"name":"one","labels":{"a":"1"},"finalizers":["x/a"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u1"}]}`,
		"second": `{"name":"one","labels":{"b":"2"},"finalizers":["x/b"],"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"q","uid":"u2"}]}`,
	} {
		content := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":` + metadata + `,"spec":{"size":3}}`
		if _, err := client.Patch(t.Context(), "one", types.ApplyPatchType, []byte(content), metav1.PatchOptions{FieldManager: manager}); err != nil {
			t.Fatalf("%s: %v", manager, err)
		}
	}
	one, err := client.Patch(t.Context(), "one", types.ApplyPatchType, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"one"}}`), metav1.PatchOptions{FieldManager: "first"})
	if err != nil {
		t.Fatal(err)
	}
	labels, finalizers, owners := one.GetLabels(), one.GetFinalizers(), one.GetOwnerReferences()
	if len(labels) != 1 || labels["b"] != "2" || len(finalizers) != 1 || finalizers[0] != "x/b" || len(owners) != 1 || owners[0].UID != "u2" {
		t.Errorf("after the first manager left, the object has %v, %v and %v. The second one's must be left", labels, finalizers, owners)
	}
	if _, err := client.Patch(t.Context(), "one", types.ApplyPatchType, []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"one"},"spec":{"size":4}}`), metav1.PatchOptions{FieldManager: "third"}); err == nil {
		t.Error("there is no conflict about a field of another manager")
	}
}
