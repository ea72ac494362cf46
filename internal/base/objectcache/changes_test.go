package objectcache

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

func TestHandler(t *testing.T) {
	named := func(name string, labels map[string]string) *corev1.Node {
		node := newNode(name)
		node.Labels = labels
		return node
	}
	a, labelled, b := named("a", nil), named("a", map[string]string{"x": "y"}), named("b", nil)
	changes := loop.NewChanges()
	handler := Handler(changes, func(node *corev1.Node) bool { return node.Name == "a" },
		func(before, now *corev1.Node) bool { return len(before.Labels) == len(now.Labels) })
	for name, test := range map[string]struct {
		do   func()
		want bool
	}{
		"added":               {func() { handler.OnAdd(a, false) }, true},
		"does not matter":     {func() { handler.OnAdd(b, false) }, false},
		"of another type":     {func() { handler.OnAdd(&corev1.Pod{}, false) }, false},
		"changed":             {func() { handler.OnUpdate(a, labelled) }, true},
		"mattered before":     {func() { handler.OnUpdate(labelled, b) }, true},
		"makes no difference": {func() { handler.OnUpdate(a, a) }, false},
		"deleted":             {func() { handler.OnDelete(a) }, true},
		"deleted unseen":      {func() { handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "a", Obj: a}) }, true},
		"twice":               {func() { handler.OnAdd(a, false); handler.OnAdd(a, false); <-changes }, false},
		"everything matters":  {func() { Handler[*corev1.Node](changes, nil, nil).OnUpdate(b, b) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			test.do()
			got := false
			select {
			case <-changes:
				got = true
			default:
			}
			if got != test.want {
				t.Errorf("it notified: %t, want %t", got, test.want)
			}
		})
	}
}
