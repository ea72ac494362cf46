package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	readyzURL = "https://127.0.0.1:6443/readyz"
	// pollInterval is the precision of times where there is no watch.
	pollInterval = 20 * time.Millisecond
	startTimeout = 2 * time.Minute
	podName      = "bench"
)

// startTimes are seconds since the start of the first process.
type startTimes struct {
	Readyz    float64 `json:"readyz"`
	NodeReady float64 `json:"nodeReady"`
	PodReady  float64 `json:"podReady"`
}

// observe measures the times of a system that was just started on h. It creates the first pod as
// soon as /readyz answers and the API accepts the pod.
func observe(ctx context.Context, h *harness.Host, kubeconfig string, started time.Time) (startTimes, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var times startTimes
	since := func() float64 { return time.Since(started).Seconds() }

	node := make(chan error, 1)
	go func() {
		err := waitNode(ctx, h, kubeconfig)
		times.NodeReady = since()
		node <- err
	}()
	if err := waitReadyz(ctx, h); err != nil {
		return times, err
	}
	times.Readyz = since()
	if err := runFirstPod(ctx, h, kubeconfig); err != nil {
		return times, err
	}
	times.PodReady = since()
	return times, <-node
}

// pause waits for one pollInterval, or returns the error of ctx.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollInterval):
		return nil
	}
}

// waitReadyz asks /readyz without credentials until the API server is ready.
func waitReadyz(ctx context.Context, h *harness.Host) error {
	client := http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			DialContext:     h.DialContext,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		},
	}
	defer client.CloseIdleConnections()
	for {
		answer, err := client.Get(readyzURL)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("status %s", answer.Status)
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait for /readyz: %w: %w", ended, err)
		}
	}
}

// restConfig reads a kubeconfig of the host, for use from outside.
func restConfig(h *harness.Host, kubeconfig string) (*rest.Config, error) {
	text, err := os.ReadFile(h.Path(kubeconfig))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	cfg.Dial = h.DialContext
	cfg.QPS = -1
	return cfg, nil
}

// connect returns a client as soon as there is a kubeconfig.
func connect(ctx context.Context, h *harness.Host, kubeconfig string) (*kubernetes.Clientset, error) {
	for {
		cfg, err := restConfig(h, kubeconfig)
		if err == nil {
			return kubernetes.NewForConfig(cfg)
		}
		if ended := pause(ctx); ended != nil {
			return nil, fmt.Errorf("wait for %s: %w: %w", kubeconfig, ended, err)
		}
	}
}

// waitNode waits until a node is Ready. The API need not exist yet.
func waitNode(ctx context.Context, h *harness.Host, kubeconfig string) error {
	client, err := connect(ctx, h, kubeconfig)
	if err != nil {
		return err
	}
	for {
		nodes, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
		if err == nil {
			err = await(nodes, nodeReady)
		}
		if err == nil {
			return nil
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait for node: %w: %w", ended, err)
		}
	}
}

// runFirstPod creates a pod, as soon as its namespace has a service account, and
// waits until it is Ready.
func runFirstPod(ctx context.Context, h *harness.Host, kubeconfig string) error {
	client, err := connect(ctx, h, kubeconfig)
	if err != nil {
		return err
	}
	api := client.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:            podName,
			Image:           assets.PauseImage,
			ImagePullPolicy: corev1.PullIfNotPresent,
		}}},
	}
	for {
		_, err := api.Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("create pod: %w: %w", ended, err)
		}
	}
	for {
		pods, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", podName).String()})
		if err == nil {
			err = await(pods, podReady)
		}
		if err == nil {
			return nil
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait for pod: %w: %w: %s", ended, err, lastEvents(client))
		}
	}
}

// lastEvents returns the cluster's latest Events as text.
func lastEvents(client kubernetes.Interface) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	events, err := client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Sprintf("list events: %v", err)
	}
	var text strings.Builder
	for _, event := range events.Items {
		fmt.Fprintf(&text, "\n%s %s: %s: %s", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
	}
	return text.String()
}

// removeFirstPod deletes the pod of runFirstPod, and waits until it is gone.
func removeFirstPod(ctx context.Context, client kubernetes.Interface) error {
	api := client.CoreV1().Pods(metav1.NamespaceDefault)
	if err := api.Delete(ctx, podName, *metav1.NewDeleteOptions(0)); err != nil {
		return fmt.Errorf("delete pod: %w", err)
	}
	for {
		if _, err := api.Get(ctx, podName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for pod to go: %w", err)
		}
	}
}

// await reads events until one satisfies ready, or there are no more.
func await(events watch.Interface, ready func(watch.Event) bool) error {
	defer events.Stop()
	var last watch.Event
	for event := range events.ResultChan() {
		if ready(event) {
			return nil
		}
		last = event
	}
	return fmt.Errorf("the watch ended after %s %v", last.Type, last.Object)
}

func nodeReady(event watch.Event) bool {
	node, ok := event.Object.(*corev1.Node)
	if !ok {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func podReady(event watch.Event) bool {
	pod, ok := event.Object.(*corev1.Pod)
	if !ok {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}
