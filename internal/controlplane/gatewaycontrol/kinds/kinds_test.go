package kinds

import (
	"fmt"
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// TestTyped makes a route without what only kubectl and the API server need. An object that does not fit the
// type stays as it is.
func TestTyped(t *testing.T) {
	route := func(spec any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"kind": "HTTPRoute", "spec": spec,
			"metadata": map[string]any{
				"namespace": "shop", "name": "web", "managedFields": []any{map[string]any{"manager": "kubectl"}},
				"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "yes"},
			},
		}}
	}
	made, err := Typed[gwv1.HTTPRoute](route(map[string]any{"hostnames": []any{"web.example"}}))
	typed, is := made.(*gwv1.HTTPRoute)
	if err != nil || !is {
		t.Fatalf("got a %T: %v", made, err)
	}
	if typed.Name != "web" || typed.Spec.Hostnames[0] != "web.example" || len(typed.ManagedFields) > 0 || !maps.Equal(typed.Annotations, map[string]string{"kept": "yes"}) {
		t.Errorf("got %+v", typed)
	}
	wrong := route("none")
	if got, err := Typed[gwv1.HTTPRoute](wrong); got != wrong || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := Typed[gwv1.HTTPRoute](typed); got != typed || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestList has the order of NAMESPACE/NAME, in which "a-b/x" comes before "a/x".
func TestList(t *testing.T) {
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, name := range [][2]string{{"a", "y"}, {"b", "x"}, {"a", "x"}, {"a-b", "z"}} {
		if err := store.Add(&gwv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: name[0], Name: name[1]}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Add(&unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "strange"}}}); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, g := range List[gwv1.Gateway](store) {
		got += fmt.Sprintf("%s/%s ", g.Namespace, g.Name)
	}
	if want := "a-b/z a/x a/y b/x "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if List[gwv1.Gateway](nil) != nil {
		t.Error("a kind that is not watched has objects")
	}
}
