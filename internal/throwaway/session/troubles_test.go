package session

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestTroubles wants to hear of each container that cannot start once, and of none that is only not there yet.
func TestTroubles(t *testing.T) {
	waiting := func(container, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{waiting("init", "PodInitializing", "")},
			ContainerStatuses:     []corev1.ContainerStatus{waiting("app", "ErrImagePull", "example.com/no:1: not found"), waiting("side", "ContainerCreating", "")},
		},
	}
	client := fake.NewClientset(pod)
	told := troubles{}
	const want = "container app of pod web in namespace shop does not start: ErrImagePull: example.com/no:1: not found"
	if news := told.look(t.Context(), client.CoreV1()); !slices.Equal(news, []string{want}) {
		t.Errorf("got %q, want %q", news, want)
	}
	pod.Status.ContainerStatuses[0] = waiting("app", "ImagePullBackOff", "Back-off pulling image")
	if _, err := client.CoreV1().Pods("shop").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if news := told.look(t.Context(), client.CoreV1()); len(news) > 0 || told.text() != "; "+want {
		t.Errorf("it is told again: %q, and at the end %q", news, told.text())
	}
	pod.Status.InitContainerStatuses[0] = waiting("init", "CreateContainerConfigError", "secret \"x\" not found")
	pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if _, err := client.CoreV1().Pods("shop").UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	news := told.look(t.Context(), client.CoreV1())
	if len(news) != 1 || !strings.Contains(news[0], "container init") || strings.Contains(told.text(), "app") {
		t.Errorf("got %q, and at the end %q", news, told.text())
	}
}
