package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/kedge-dev/kedge/tests/harness"
)

// patience limits how long anything may take that kedge does by itself, also on a slow machine (tests/machines).
const patience = 10 * time.Minute

// space is a test's own namespace in a cluster, with methods for the test.
type space struct {
	*testing.T
	server    *harness.Server
	client    kubernetes.Interface
	config    *rest.Config
	namespace string
	ctx       context.Context
}

// newSpace makes a namespace on the shared server.
func newSpace(t *testing.T) *space {
	t.Helper()
	return newSpaceOn(t, sharedServer(t))
}

// newSpaceOn makes a namespace on a server. It is deleted when the test ends. If the test has
// failed, its objects are shown first.
func newSpaceOn(t *testing.T, server *harness.Server) *space {
	t.Helper()
	s := &space{T: t, server: server, client: server.Client(), config: server.RESTConfig(), ctx: context.Background()}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	namespace, err := s.client.CoreV1().Namespaces().Create(s.ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("make namespace: %v", err)
	}
	s.namespace = namespace.Name
	t.Cleanup(func() {
		if t.Failed() {
			s.describe()
		}
		// The test does not wait for the deletion, which would take half a minute.
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
		_ = s.client.CoreV1().Pods(s.namespace).DeleteCollection(s.ctx, now, metav1.ListOptions{})
		_ = s.client.CoreV1().Namespaces().Delete(s.ctx, s.namespace, metav1.DeleteOptions{})
	})
	s.eventually("the namespace's service account", func() error {
		_, err := s.client.CoreV1().ServiceAccounts(s.namespace).Get(s.ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// on returns the space for a subtest.
func (s *space) on(t *testing.T) *space {
	sub := *s
	sub.T = t
	return &sub
}

// describe logs what a person would look at first.
func (s *space) describe() {
	for _, args := range [][]string{
		{"get", "all", "-o", "wide"},
		{"describe", "pods"},
		{"logs", "--all-containers", "--prefix", "--tail=20", "-l", "app"},
		{"get", "events", "--sort-by=.lastTimestamp"},
	} {
		output, err := s.kubectlCommand(args...).CombinedOutput()
		s.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	s.Logf("the end of kedge's log:\n%s", s.server.LogTail())
}

// eventually waits until check returns nil.
func (s *space) eventually(what string, check func() error) {
	s.Helper()
	harness.Eventually(s.T, patience, what, check)
}

// apply creates or changes the objects of a YAML text, in the test's namespace unless they name
// another one or are cluster-wide. NAMESPACE in the text stands for the namespace's name.
func (s *space) apply(text string) {
	s.Helper()
	if err := s.tryApply(text); err != nil {
		s.Fatal(err)
	}
}

// refused applies an object and checks that it is refused with a message that contains want.
func (s *space) refused(text, want string) {
	s.Helper()
	err := s.tryApply(text)
	if err == nil {
		s.Fatalf("it was not refused:\n%s", text)
	}
	if !strings.Contains(err.Error(), want) {
		s.Fatalf("the refusal does not say %q: %v", want, err)
	}
}

func (s *space) tryApply(text string) error { return applyAs(s.ctx, s.config, s.namespace, text) }

func applyAs(ctx context.Context, config *rest.Config, namespace, text string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discoverer))
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(strings.ReplaceAll(text, "NAMESPACE", namespace)), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("parse %s: %w", text, err)
		}
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return err
		}
		var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if mapping.Scope.Name() == "namespace" {
			if object.GetNamespace() == "" {
				object.SetNamespace(namespace)
			}
			resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
		}
		options := metav1.ApplyOptions{FieldManager: "integration-test", Force: true}
		if _, err := resource.Apply(ctx, object.GetName(), object, options); err != nil {
			return fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
		}
	}
}

// kubectlCommand returns `kedge kubectl` as a command on the server's host.
func (s *space) kubectlCommand(args ...string) *harness.Cmd {
	return s.server.Host.Kedge(s.ctx, append([]string{"kubectl", "--namespace", s.namespace}, args...)...)
}

// kubectl runs `kedge kubectl` on the server's host and returns its output.
func (s *space) kubectl(args ...string) string {
	s.Helper()
	output, err := s.kubectlCommand(args...).Output()
	if err != nil {
		s.Fatal(err)
	}
	return string(output)
}

// in runs a program in a pod, by kubectl exec.
func (s *space) in(pod string, command ...string) (string, error) {
	output, err := s.kubectlCommand(append([]string{"exec", pod, "--"}, command...)...).Output()
	return strings.TrimSpace(string(output)), err
}

// eventuallyIn runs a program in a pod until its output fits.
func (s *space) eventuallyIn(pod, what string, fits func(output string) bool, command ...string) {
	s.Helper()
	s.eventually(what, func() error {
		output, err := s.in(pod, command...)
		if err != nil {
			return err
		}
		if !fits(output) {
			return fmt.Errorf("%s printed %q", strings.Join(command, " "), output)
		}
		return nil
	})
}

// pods waits until exactly want pods fit the selector and all are Ready, and returns them.
func (s *space) pods(selector string, want int) []corev1.Pod {
	s.Helper()
	var found []corev1.Pod
	s.eventually(fmt.Sprintf("%d ready pods with %s", want, selector), func() error {
		list, err := s.client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range list.Items {
			if isReady(&pod) {
				ready++
			}
		}
		if found = list.Items; ready != want || len(found) != want {
			return fmt.Errorf("%d pods, %d of them ready", len(found), ready)
		}
		return nil
	})
	return found
}

// pod waits until a pod is Ready, and returns it.
func (s *space) pod(name string) *corev1.Pod {
	s.Helper()
	return s.podUntil(name, "ready", isReady)
}

// podUntil waits until a pod fits, and returns it.
func (s *space) podUntil(name, what string, fits func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	var found *corev1.Pod
	s.eventually("pod "+name+" to be "+what, func() error {
		pod, err := s.client.CoreV1().Pods(s.namespace).Get(s.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if found = pod; !fits(pod) {
			return fmt.Errorf("it is %s: %s", pod.Status.Phase, conditions(pod))
		}
		return nil
	})
	return found
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

func succeeded(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded }

func conditions(pod *corev1.Pod) string {
	var text bytes.Buffer
	for _, condition := range pod.Status.Conditions {
		fmt.Fprintf(&text, "%s=%s %s %s; ", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	for _, status := range pod.Status.ContainerStatuses {
		fmt.Fprintf(&text, "%s restarted %d times, state %+v; ", status.Name, status.RestartCount, status.State)
	}
	return text.String()
}

// logs returns the log of a pod's only container.
func (s *space) logs(pod string) string {
	s.Helper()
	text, err := s.client.CoreV1().Pods(s.namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(s.ctx)
	if err != nil {
		s.Fatalf("read logs of %s: %v", pod, err)
	}
	return string(text)
}

// sleeper starts a pod of testserver that only waits, for use with in, and waits until it is ready.
func (s *space) sleeper(name string) {
	s.Helper()
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: ` + testserver + `, args: [sleep]}
`)
	s.pod(name)
}

// webServer creates a Deployment of testserver's echo server and a Service of this type for it,
// both called web. It does not wait for them.
func (s *space) webServer(replicas int, serviceType corev1.ServiceType) {
	s.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: %s
        args: [serve, "8080"]
        ports: [{containerPort: 8080, name: http}]
        readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: %s
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`, replicas, testserver, serviceType))
}
