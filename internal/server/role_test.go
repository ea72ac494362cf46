package server

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
)

// A server has the labels of what it runs, and loses those of what it ran.
func TestLabelNode(t *testing.T) {
	const control, member = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd"
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"mine": "stays"}}})
	for _, test := range []struct {
		cfg   config.Server
		store state
		want  map[string]string
	}{
		{config.Server{}, state{}, map[string]string{"mine": "stays", control: "true"}},
		{config.Server{}, state{member: &etcd.Member{}}, map[string]string{"mine": "stays", control: "true", member: "true"}},
		{config.Server{DisableAPIServer: true}, state{member: &etcd.Member{}}, map[string]string{"mine": "stays", member: "true"}},
		{config.Server{DisableEtcd: true}, state{}, map[string]string{"mine": "stays", control: "true"}},
	} {
		if err := labelNode(t.Context(), client, "a", roleLabels(test.cfg, &test.store)); err != nil {
			t.Fatal(err)
		}
		node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(node.Labels, test.want) {
			t.Errorf("%+v: got %v, want %v", test.cfg, node.Labels, test.want)
		}
	}
}
