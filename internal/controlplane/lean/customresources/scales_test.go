package customresources

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestScales wants the scale of a kind to work from when its definition has one until it has none.
func TestScales(t *testing.T) {
	c := newTestCluster(t)
	ctx := t.Context()
	defined := func(generation int64, scaled bool) *apiextensionsv1.CustomResourceDefinition {
		d := widgetDefinition("1", generation, "red")
		if scaled {
			d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.size", StatusReplicasPath: ".status.size"},
			}
		}
		return d
	}
	c.define(defined(1, false))
	client := c.Resource(widgets).Namespace("a")
	if _, err := client.Create(ctx, widget("one", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(ctx, "one", metav1.GetOptions{}, "scale"); err == nil {
		t.Error("a version without a scale answers with one")
	}

	c.define(defined(2, true))
	c.until("there is a scale", func() bool {
		_, err := client.Get(ctx, "one", metav1.GetOptions{}, "scale")
		return err == nil
	})
	scale, err := client.Get(ctx, "one", metav1.GetOptions{}, "scale")
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(scale.Object, int64(7), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Update(ctx, scale, metav1.UpdateOptions{}, "scale"); err != nil {
		t.Fatal(err)
	}
	one, err := client.Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(one.Object, "spec", "size"); size != 7 {
		t.Errorf("the object's size is %d after its scale was set to 7", size)
	}

	c.define(defined(3, false))
	c.until("there is no scale any more", func() bool {
		_, err := client.Get(ctx, "one", metav1.GetOptions{}, "scale")
		return err != nil
	})
	if _, err := client.Get(ctx, "one", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}
