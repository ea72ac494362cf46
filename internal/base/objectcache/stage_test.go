package objectcache

import (
	"context"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// TestStage has a Stage with an informer of its factory and another one.
func TestStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
		stage, err := NewStage(t.Context(), Own(api))
		if err != nil {
			t.Fatal(err)
		}
		changes, synced, ended := loop.NewChanges(), make(chan struct{}), make(chan struct{})
		if err := stage.Handle(stage.Core().V1().Nodes().Informer(), Handler[*corev1.Node](changes, nil, nil)); err != nil {
			t.Fatal(err)
		}
		stage.Go(func(ctx context.Context) {
			<-ctx.Done()
			close(ended)
		}, synced)
		started := make(chan bool, 1)
		go func() { started <- stage.Start() }()
		synctest.Wait()
		if len(started) > 0 {
			t.Error("it has started before the other informer has its objects")
		}
		close(synced)
		if !<-started || len(changes) != 1 {
			t.Error("it has not started, or the handler knows no node")
		}
		if node, err := stage.Core().V1().Nodes().Lister().Get("a"); err != nil {
			t.Errorf("the node is %v, %v", node, err)
		}
		stage.Stop()
		select {
		case <-ended:
		default:
			t.Error("it has stopped before the other informer")
		}
		if stage.Start() {
			t.Error("it starts after it has stopped")
		}
		(*Stage)(nil).Stop()
	})
}
