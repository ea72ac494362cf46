package loadbalancercontrol

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

func TestOffers(t *testing.T) {
	pool := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "p"}, "spec": spec}}
	}
	addresses := []any{"192.0.2.240/28"}
	selector := func(value string) map[string]any { return map[string]any{"matchLabels": map[string]any{"shop": value}} }
	for _, test := range []struct {
		name               string
		spec               map[string]any
		service, namespace string
		offered            bool
	}{
		{"without selectors only on request", map[string]any{"addresses": addresses}, "a", "a", false},
		{"the Service matches", map[string]any{"addresses": addresses, "serviceSelector": selector("a")}, "a", "", true},
		{"the Service does not match", map[string]any{"addresses": addresses, "serviceSelector": selector("a")}, "b", "a", false},
		{"the namespace matches", map[string]any{"addresses": addresses, "namespaceSelector": selector("a")}, "", "a", true},
		{"both must match", map[string]any{"addresses": addresses, "serviceSelector": selector("a"), "namespaceSelector": selector("a")}, "a", "b", false},
		{"a pool without addresses", map[string]any{"serviceSelector": selector("a")}, "a", "a", false},
		{"a pool that cannot be read", map[string]any{"addresses": []any{"everything"}, "serviceSelector": selector("a")}, "a", "a", false},
	} {
		offers := Offers([]*unstructured.Unstructured{pool(test.spec)})
		if got := offers(labels.Set{"shop": test.service}, labels.Set{"shop": test.namespace}); got != test.offered {
			t.Errorf("%s: got %v", test.name, got)
		}
	}
}
