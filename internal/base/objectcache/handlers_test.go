package objectcache

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// TestEach calls is and gone for objects of its type, also for one whose deletion was missed.
func TestEach(t *testing.T) {
	var calls []string
	handler := Each(
		func(pod *corev1.Pod) { calls = append(calls, "is "+pod.Name+pod.ResourceVersion) },
		func(key string) { calls = append(calls, "gone "+key) },
	)
	pod := func(version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "a", ResourceVersion: version}}
	}
	handler.OnAdd(pod("1"), true)
	handler.OnAdd(newNode("b"), false)
	handler.OnUpdate(pod("1"), pod("2"))
	handler.OnDelete(pod("2"))
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "n/c"})
	if want := []string{"is a1", "is a2", "gone n/a", "gone n/c"}; !slices.Equal(calls, want) {
		t.Errorf("got %q, want %q", calls, want)
	}
}

// TestOnChange calls do with the newest state, of which Latest finds the object.
func TestOnChange(t *testing.T) {
	var names []string
	handler := OnChange(func(object any) {
		node, _ := Latest(object).(*corev1.Node)
		names = append(names, node.Name)
	})
	handler.OnAdd(newNode("a"), true)
	handler.OnUpdate(newNode("a"), newNode("b"))
	handler.OnDelete(newNode("c"))
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "d", Obj: newNode("d")})
	if got := fmt.Sprint(names); got != "[a b c d]" {
		t.Errorf("got %s", got)
	}
}
