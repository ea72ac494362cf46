package kubelet

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// TestLostAnswer has an API whose answer to the registration is lost. `kedge status` must not show
// the fault any more when the kubelet finds its Node.
func TestLostAnswer(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	client := fake.NewClientset()
	client.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if err := client.Tracker().Add(node.DeepCopy()); err != nil {
			t.Error(err)
		}
		return true, nil, errors.New("connection reset by peer")
	})
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	group := component.Group{OnReady: cancel, OnFault: func(s component.Status) { told = append(told, s.Fault) }}
	group.Add(component.Func("kubelet", func(ctx context.Context, ready func()) error {
		nodes := (&kubeletClient{Interface: client}).CoreV1().Nodes()
		if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err == nil {
			t.Error("the first attempt succeeds")
		}
		if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("the second attempt: %v", err)
		}
		ready()
		<-ctx.Done()
		return nil
	}))
	if err := group.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(told) != 2 || !strings.Contains(told[0], "connection reset by peer") || told[1] != "" {
		t.Errorf("status says %q, want the fault, and then none", told)
	}
}
