package variants

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

// patience limits how long anything may take that kedge does by itself.
const patience = 2 * time.Minute

// cluster is a running server with methods for tests.
type cluster struct {
	*testing.T
	server *harness.Server
	host   *harness.Host
	client kubernetes.Interface
	ctx    context.Context
}

// start starts a server with args and waits until its node is Ready.
func start(t *testing.T, host *harness.Host, args ...string) *cluster {
	t.Helper()
	server := host.StartServer(t, args...)
	server.WaitReady()
	return newCluster(t, server)
}

func newCluster(t *testing.T, server *harness.Server) *cluster {
	t.Helper()
	c := &cluster{T: t, server: server, host: server.Host, client: server.Client(), ctx: context.Background()}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe()
		}
	})
	return c
}

// on returns the cluster for a subtest.
func (c *cluster) on(t *testing.T) *cluster {
	sub := *c
	sub.T = t
	return &sub
}

// describe logs what a person would look at first.
func (c *cluster) describe() {
	for _, args := range [][]string{
		{"get", "node,all", "-A", "-o", "wide"},
		{"describe", "pods"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
	} {
		output, err := c.host.Kedge(c.ctx, append([]string{"kubectl"}, args...)...).CombinedOutput()
		c.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// eventually waits until check returns nil.
func (c *cluster) eventually(what string, check func() error) {
	c.Helper()
	harness.Eventually(c.T, patience, what, check)
}

// kubectl runs `kedge kubectl` on the server's host and returns its output.
func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	output, err := c.host.Kedge(c.ctx, append([]string{"kubectl"}, args...)...).Output()
	if err != nil {
		c.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

// apply creates or changes the objects of a YAML text.
func (c *cluster) apply(text string) {
	c.Helper()
	// Just after the start the pods' service account may not exist yet.
	c.eventually("objects to be applied", func() error {
		cmd := c.host.Kedge(c.ctx, "kubectl", "apply", "-f", "-")
		cmd.Stdin = strings.NewReader(text)
		_, err := cmd.Output()
		return err
	})
}

// in runs a program in a pod until it succeeds, and returns its output.
func (c *cluster) in(pod string, command ...string) string {
	c.Helper()
	var output string
	c.eventually(strings.Join(command, " ")+" in pod "+pod, func() error {
		text, err := c.host.Kedge(c.ctx, append([]string{"kubectl", "exec", pod, "--"}, command...)...).Output()
		output = strings.TrimSpace(string(text))
		return err
	})
	return output
}

// pod waits until a pod is Ready, and returns it.
func (c *cluster) pod(name string) *corev1.Pod {
	c.Helper()
	var found *corev1.Pod
	c.eventually("pod "+name+" to be ready", func() error {
		pod, err := c.client.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found = pod
		return ready(pod)
	})
	return found
}

func ready(pod *corev1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is %s: %+v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
}

// sleeper starts a pod of testserver that only waits, for use with in. spec has further fields in
// YAML's flow style, which end in a comma.
func (c *cluster) sleeper(name, spec string) *corev1.Pod {
	c.Helper()
	c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {%s terminationGracePeriodSeconds: 1, containers: [{name: main, image: %q, args: [sleep]}]}
`, name, spec, testserver))
	return c.pod(name)
}

// works checks that the cluster works: the pod web answers another pod by the name of its Service,
// and the host by its NodePort.
func (c *cluster) works() {
	c.Helper()
	c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %q
    args: [serve, "8080"]
    readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`, testserver))
	c.sleeper("client", "")
	c.pod("web")
	c.answers("client", "http://web.default.svc.cluster.local/")
	c.nodePortAnswers(c.host, c.host.Address.String())
}

// answers checks that the pod web answers the pod from at url.
func (c *cluster) answers(from, url string) {
	c.Helper()
	c.eventually(from+" to reach "+url, func() error {
		text, err := c.host.Kedge(c.ctx, "kubectl", "exec", from, "--", "/testserver", "fetch", url).Output()
		if err == nil && !strings.HasPrefix(string(text), "hostname=web\n") {
			err = fmt.Errorf("answer %q", text)
		}
		return err
	})
}

// nodePortAnswers checks that the pod web answers a host at the NodePort.
func (c *cluster) nodePortAnswers(from *harness.Host, address string) {
	c.Helper()
	port := c.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	address = net.JoinHostPort(address, port)
	c.eventually(from.Name+" to reach "+address, func() error {
		answer, err := from.Get(address)
		if err == nil && !strings.Contains(answer, "hostname=web\n") {
			err = fmt.Errorf("answer %q", answer)
		}
		return err
	})
}

// run runs a program on a host and returns its output.
func run(t *testing.T, host *harness.Host, name string, args ...string) string {
	t.Helper()
	output, err := host.Command(context.Background(), name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}
