package why

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestUnwell looks at a namespace with very many pods that fail, and with a Service of pods that do not exist. The number of requests does not
// grow with the number of pods.
func TestUnwell(t *testing.T) {
	const pods = 500
	var e example
	for i := range pods {
		name := fmt.Sprint("pod-", i)
		end := &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", FinishedAt: metav1.NewTime(now.Add(-time.Second))}
		e.objects = append(e.objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "many", Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "main", Image: "web"}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.0.2", ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", ImageID: "web", RestartCount: 1, State: corev1.ContainerState{Terminated: end},
			}}},
		})
	}
	e.objects = append(e.objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "many", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9", Selector: map[string]string{"app": "web"}},
	})
	e.log = "no database"
	clients := e.clients(t)
	unwell, looked, unread, err := Unwell(t.Context(), clients, "many")
	if err != nil || len(unread) > 0 || looked != pods+1 || len(unwell) != pods+1 {
		t.Fatalf("of %d objects %d are not well, unread %v, %v", looked, len(unwell), unread, err)
	}
	if requests := len(clients.Kubernetes.(*fake.Clientset).Actions()); requests > 2*mostLogs+20 {
		t.Errorf("%d requests", requests)
	}
}

// A kind that the API cannot tell is named, and the others are looked at. An API that tells nothing is an error.
func TestFaults(t *testing.T) {
	e := readExample(t, "testdata/no-node-fits.yaml")
	clients := e.clients(t)
	api := clients.Kubernetes.(*fake.Clientset)
	fail := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("no such webhook"))
	}
	api.PrependReactor("list", "jobs", fail)
	unwell, looked, unread, err := Unwell(t.Context(), clients, "default")
	if err != nil || looked == 0 || len(unwell) == 0 || len(unread) != 1 || !strings.Contains(unread[0], "It is not known what else is wrong: read Jobs default: Internal error occurred: no such webhook.") {
		t.Errorf("%d of %d are not well, unread %q, %v", len(unwell), looked, unread, err)
	}
	api.PrependReactor("*", "*", fail)
	clients.Dynamic.(*dynamicfake.FakeDynamicClient).PrependReactor("*", "*", fail)
	if _, _, _, err := Unwell(t.Context(), clients, "default"); err == nil || !strings.Contains(err.Error(), "no such webhook") {
		t.Errorf("an API that tells nothing: %v", err)
	}
}
