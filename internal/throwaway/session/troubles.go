package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// patient are the reasons why a container does not run yet although nothing is wrong.
var patient = []string{"", "ContainerCreating", "PodInitializing"}

// troubles are why containers cannot start, by pod and container. Each was told once.
type troubles map[string]string

// look returns what is new among the troubles of all pods of the cluster. Pods that nobody can list have none.
func (t troubles) look(ctx context.Context, pods typedv1.PodsGetter) (news []string) {
	list, err := pods.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	now := troubles{}
	for _, pod := range list.Items {
		for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			waiting := container.State.Waiting
			if waiting == nil || slices.Contains(patient, waiting.Reason) {
				continue
			}
			id := pod.Namespace + "/" + pod.Name + "/" + container.Name
			// The kubelet waits longer each time before it tries again (ImagePullBackOff), and then says less.
			now[id] = t[id]
			if t[id] == "" {
				now[id] = tell(&pod, container.Name, waiting)
				news = append(news, now[id])
			}
		}
	}
	clear(t)
	maps.Copy(t, now)
	return news
}

func tell(pod *corev1.Pod, container string, waiting *corev1.ContainerStateWaiting) string {
	return fmt.Sprintf("container %s of pod %s in namespace %s does not start: %s: %s", container, pod.Name, pod.Namespace, waiting.Reason, waiting.Message)
}

// text returns all troubles that there are, each after a semicolon.
func (t troubles) text() string {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(t)) {
		text.WriteString("; " + t[id])
	}
	return text.String()
}
