package noderole

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A node gets the labels of what its server runs, and loses the others.
func TestLabelNode(t *testing.T) {
	const control, member = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"mine": "stays"}}})
	for _, test := range []struct {
		roles Roles
		want  map[string]string
	}{
		{Roles{ControlPlane: true}, map[string]string{"mine": "stays", control: "true"}},
		{Roles{ControlPlane: true, Etcd: true}, map[string]string{"mine": "stays", control: "true", member: "true"}},
		{Roles{Etcd: true}, map[string]string{"mine": "stays", member: "true"}},
		{Roles{ControlPlane: true}, map[string]string{"mine": "stays", control: "true"}},
	} {
		if err := labelNode(t.Context(), client, "a", test.roles.labels()); err != nil {
			t.Fatal(err)
		}
		node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(node.Labels, test.want) {
			t.Errorf("%+v: got %v, want %v", test.roles, node.Labels, test.want)
		}
	}
}
