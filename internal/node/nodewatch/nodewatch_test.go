package nodewatch

import (
	"context"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cachetest "k8s.io/client-go/tools/cache/testing"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

func TestWatchNode(t *testing.T) {
	logged := logtest.NewGlobal()
	defer logged.Reset()
	said := func(status corev1.ConditionStatus, at time.Time) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "pi"},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(at)}}},
		}
	}
	node := func(status corev1.ConditionStatus) *corev1.Node { return said(status, time.Now()) }
	eventually := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not happen", what)
			}
		}
	}
	warnings := func() (n int) {
		for _, entry := range logged.AllEntries() {
			if strings.Contains(entry.Message, "node pi was deleted from the cluster") {
				n++
			}
		}
		return n
	}

	source := cachetest.NewFakeControllerSource()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	var group component.Group
	group.Add(component.Func("node", func(ctx context.Context, announce func()) error {
		return watchNode(ctx, source, "pi", nodeobject.Anew(), 10*time.Millisecond, func() {
			close(ready)
			announce()
		})
	}))
	go func() { ended <- group.Run(ctx) }()
	source.Add(said(corev1.ConditionTrue, time.Now().Add(-time.Hour))) // by the process before
	source.Modify(node(corev1.ConditionFalse))
	select {
	case <-ready:
		t.Fatal("the component is ready before the node is Ready")
	case <-time.After(50 * time.Millisecond):
	}
	source.Modify(node(corev1.ConditionTrue))
	eventually("readiness", func() bool {
		select {
		case <-ready:
			return true
		default:
			return false
		}
	})
	if warnings() > 0 {
		t.Error("an existing node was reported as deleted")
	}
	source.Delete(node(corev1.ConditionTrue))
	eventually("the message, and then the reminder", func() bool { return warnings() > 1 })
	if fault := group.Status()[0].Fault; !strings.Contains(fault, "node pi was deleted") || !strings.Contains(fault, "restart kedge with a join token") {
		t.Errorf("the component reports %q", fault)
	}
	// The node registers again: ready must not be called twice.
	source.Add(node(corev1.ConditionTrue))
	eventually("the end of the fault", func() bool { return group.Status()[0].Fault == "" })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
