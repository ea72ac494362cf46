// Package cluster has operations on a running cluster for scenarios with many nodes: run pods on nodes,
// run programs in them, and let them talk. Tests below tests/ call it, with hosts of tests/harness.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	// Patience limits how long anything may take that kedge does by itself.
	Patience = 3 * time.Minute
	// Namespace is the namespace of the pods.
	Namespace = "default"
	// WebPort is the port on which the pods of RunWeb answer.
	WebPort = "8080"
)

var testserver = sync.OnceValues(func() (string, error) {
	repository, err := harness.Repository()
	if err != nil {
		return "", err
	}
	return image.Testserver(repository)
})

// NewHost makes a host with the image of the pods.
func NewHost(t testing.TB, network *harness.Network, name string) *harness.Host {
	t.Helper()
	host := network.NewHost(t, name)
	Preload(t, host)
	return host
}

// Preload gives a host the image of the pods.
func Preload(t testing.TB, host *harness.Host) {
	t.Helper()
	archive, err := testserver()
	if err != nil {
		t.Fatalf("build image: %v", err)
	}
	host.Preload(archive)
}

// PreloadBusybox gives a host the image with busybox.
func PreloadBusybox(t testing.TB, host *harness.Host) {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := image.Busybox(repository)
	if err != nil {
		t.Fatalf("build image: %v", err)
	}
	host.Preload(archive)
}

// Cluster is a running cluster, seen from one of its servers.
type Cluster struct {
	*testing.T
	Server *harness.Server
	Client kubernetes.Interface
}

// Of returns the cluster of a server whose API is ready. If the test fails, it shows the cluster's
// objects.
func Of(t *testing.T, server *harness.Server) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Server: server, Client: server.Client()}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe()
		}
	})
	return c
}

// Start starts a server with args on a host of its own, and waits for its node.
func Start(t *testing.T, network *harness.Network, args ...string) *Cluster {
	t.Helper()
	server := NewHost(t, network, "server-1").StartServer(t, args...)
	server.WaitReady()
	return Of(t, server)
}

// Join makes a new host on a network join the cluster, and waits for its node.
func (c *Cluster) Join(network *harness.Network, name string, args ...string) *harness.Agent {
	c.Helper()
	agent := NewHost(c.T, network, name).StartAgent(c.T, c.Server, args...)
	agent.WaitReady()
	return agent
}

// describe logs what a person would look at first.
func (c *Cluster) describe() {
	for _, args := range [][]string{
		{"get", "node,all", "-A", "-o", "wide"},
		{"describe", "pods"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Slowly(Patience))
		output, err := c.Server.Host.Kedge(ctx, append([]string{"kubectl", "--request-timeout=20s"}, args...)...).CombinedOutput()
		cancel()
		c.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// Eventually waits until check returns nil.
func (c *Cluster) Eventually(what string, check func() error) {
	c.Helper()
	harness.Eventually(c.T, Patience, what, check)
}

// Told waits for an Event about an object whose message has all of the words.
func (c *Cluster) Told(namespace, name string, words ...string) {
	c.Helper()
	c.Eventually(fmt.Sprintf("an event of %s with %q", name, words), func() error {
		events, err := c.Client.CoreV1().Events(namespace).List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var said []string
		for _, event := range events.Items {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(event.Message, word) }) {
				c.Logf("%s: %s: %s", name, event.Reason, event.Message)
				return nil
			}
			said = append(said, event.Message)
		}
		return fmt.Errorf("there are %q", said)
	})
}

// TryKubectl runs `kedge kubectl` on the server's host, with input if that is
// not empty, and returns its output.
func (c *Cluster) TryKubectl(input string, args ...string) (string, error) {
	// The timeout is longer than kubectl's own limits, so a longer wait is a fault.
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slowly(Patience))
	defer cancel()
	cmd := c.Server.Host.Kedge(ctx, append([]string{"kubectl", "--namespace=" + Namespace}, args...)...)
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	output, err := cmd.Output()
	return strings.TrimSpace(string(output)), err
}

// Kubectl runs `kedge kubectl` on the server's host and returns its output.
func (c *Cluster) Kubectl(args ...string) string {
	c.Helper()
	output, err := c.TryKubectl("", args...)
	if err != nil {
		c.Fatal(err)
	}
	return output
}

// Apply creates or changes the objects of a YAML text.
func (c *Cluster) Apply(text string) {
	c.Helper()
	apply := func() error {
		_, err := c.TryKubectl(text, "apply", "-f", "-")
		return err
	}
	err := apply()
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "error looking up service account"):
		// A controller makes the pods' service account just after the start.
		c.Eventually("objects to be applied", apply)
	default:
		c.Fatal(err)
	}
}

// RunDeployment runs two pods that sleep, and waits until they are ready.
func (c *Cluster) RunDeployment(name string) {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: %[2]q, args: [sleep]}]
`, name, image.TestserverName))
	c.Scale(name, 2)
}

// Scale changes the number of a Deployment's pods and waits until it is reached.
func (c *Cluster) Scale(name string, replicas int) {
	c.Helper()
	c.Kubectl("scale", "deployment", name, fmt.Sprint("--replicas=", replicas))
	c.Kubectl("rollout", "status", "deployment/"+name, "--timeout="+harness.Slowly(Patience).String())
}

// RunWeb runs a pod on a node and waits until it is ready. The pod answers on WebPort with its name and
// its client's address, has the label app=web, and can fetch too.
func (c *Cluster) RunWeb(name, node string) *corev1.Pod {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: web}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    args: [serve, %q]
    readinessProbe: {httpGet: {path: /, port: %s}, periodSeconds: 1}
`, name, node, image.TestserverName, WebPort, WebPort))
	return c.Pod(name)
}

// ServeWeb makes a Service called web with a NodePort for the pods of RunWeb, and returns the NodePort.
func (c *Cluster) ServeWeb() (nodePort string) {
	c.Helper()
	c.Apply(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: ` + WebPort + `}]
`)
	return c.Kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
}

// Pod waits until a pod is Ready, and returns it.
func (c *Cluster) Pod(name string) *corev1.Pod {
	c.Helper()
	var found *corev1.Pod
	c.Eventually("pod "+name+" to be ready", func() error {
		pod, err := c.Client.CoreV1().Pods(Namespace).Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found = pod
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				return nil
			}
		}
		return fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
	})
	return found
}

// In runs a program in a pod by kubectl exec, until its output fits.
func (c *Cluster) In(pod, what string, fits func(output string) bool, command ...string) {
	c.Helper()
	c.Eventually(what, func() error {
		output, err := c.TryKubectl("", append([]string{"exec", pod, "--"}, command...)...)
		if err == nil && !fits(output) {
			err = fmt.Errorf("%s in pod %s printed %q", strings.Join(command, " "), pod, output)
		}
		return err
	})
}

// Answers waits until each of the pods has answered the pod from at a URL.
func (c *Cluster) Answers(from, url string, pods ...string) {
	c.Helper()
	missing := map[string]bool{}
	for _, pod := range pods {
		missing["hostname="+pod] = true
	}
	c.In(from, strings.Join(pods, ", ")+" to answer "+from+" at "+url, func(output string) bool {
		first, _, _ := strings.Cut(output, "\n")
		delete(missing, first)
		return len(missing) == 0
	}, "/testserver", "fetch", url)
}

// WaitNode waits until the condition Ready of a node has a status.
func (c *Cluster) WaitNode(name string, status corev1.ConditionStatus) {
	c.Helper()
	c.Eventually(fmt.Sprintf("condition Ready of node %s to be %s", name, status), func() error {
		node, err := c.Client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != status {
				return fmt.Errorf("it is %s: %s", condition.Status, condition.Message)
			}
		}
		return nil
	})
}

// Containers returns the containers of all pods: their IDs, start times and restart counts.
func (c *Cluster) Containers() map[string]string {
	c.Helper()
	containers := map[string]string{}
	c.Eventually("all pods to run", func() error {
		pods, err := c.Client.CoreV1().Pods(Namespace).List(c.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if len(pod.Status.ContainerStatuses) == 0 {
				return errors.New(pod.Name + " has no containers")
			}
			for _, status := range pod.Status.ContainerStatuses {
				if status.State.Running == nil {
					return fmt.Errorf("%s of %s does not run: %+v", status.Name, pod.Name, status.State)
				}
				containers[pod.Name+"/"+status.Name] = fmt.Sprintf("%s since %s, restarted %d times",
					status.ContainerID, status.State.Running.StartedAt, status.RestartCount)
			}
		}
		return nil
	})
	return containers
}

// WantSameContainers fails the test if the containers have changed.
func (c *Cluster) WantSameContainers(before map[string]string) {
	c.Helper()
	if after := c.Containers(); !maps.Equal(after, before) {
		c.Errorf("containers are\n%v\nand were\n%v", after, before)
	}
}

// OnNode runs a program in a pod's only container through the runtime of its node. It works when
// the API does not reach the node.
func OnNode(host *harness.Host, pod string, command ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Slowly(Patience))
	defer cancel()
	id, err := host.Kedge(ctx, "crictl", "ps", "--quiet", "--label", "io.kubernetes.pod.name="+pod).Output()
	if err != nil {
		return "", err
	}
	output, err := host.Kedge(ctx, append([]string{"crictl", "exec", "--sync", strings.TrimSpace(string(id))}, command...)...).Output()
	return strings.TrimSpace(string(output)), err
}
