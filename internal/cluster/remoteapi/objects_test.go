package remoteapi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrim keeps the images of the own node: the kubelet compares them with what it has,
// and would write its status every few seconds.
func TestTrim(t *testing.T) {
	for name, want := range map[string]int{"own": 1, "other": 0} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, ManagedFields: []metav1.ManagedFieldsEntry{{}}},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{}}},
		}
		if _, err := (&Objects{node: "own"}).trim(node); err != nil {
			t.Fatal(err)
		}
		if len(node.Status.Images) != want || node.ManagedFields != nil {
			t.Errorf("%s: got %d images and managedFields %v, want %d images alone", name, len(node.Status.Images), node.ManagedFields, want)
		}
	}
}
