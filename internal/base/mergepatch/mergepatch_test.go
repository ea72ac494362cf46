package mergepatch

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestSend sets one label, removes another one, and leaves the rest.
func TestSend(t *testing.T) {
	nodes := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"old": "1", "kept": "2"}}}).CoreV1().Nodes()
	changes := map[string]any{"metadata": map[string]any{"labels": map[string]any{"old": nil, "new": "3"}}}
	if err := Send(t.Context(), nodes, "a", changes); err != nil {
		t.Fatal(err)
	}
	node, err := nodes.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"kept": "2", "new": "3"}; !maps.Equal(node.Labels, want) {
		t.Errorf("the labels are %v, want %v", node.Labels, want)
	}
	if err := Send(t.Context(), nodes, "b", changes); !apierrors.IsNotFound(err) {
		t.Errorf("got %v of a Node that is not there", err)
	}
	if err := Send(t.Context(), nodes, "a", func() {}); err == nil {
		t.Error("a function can be encoded")
	}
}
