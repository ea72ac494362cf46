// Package join has agents join a server, and tries every fault that a join can have. Each fault
// must be reported in one line within seconds.
package join

import (
	"bytes"
	"context"
	"fmt"
	"os"
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
	patience  = 2 * time.Minute
	namespace = "default"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// buffer is a bytes.Buffer for the output of a running process.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// agent is a `kedge agent` whose output is kept.
type agent struct {
	cmd    *harness.Cmd
	output *buffer
}

// start starts `kedge agent` for the server at address; stop ends it.
func start(t *testing.T, host *harness.Host, address, token string, args ...string) *agent {
	t.Helper()
	args = append([]string{"agent", "--server=https://" + address, "--token=" + token, "--kubelet-arg=cgroup-root=" + host.Cgroup()}, args...)
	a := &agent{host.Kedge(context.Background(), args...), &buffer{}}
	a.cmd.Stdout, a.cmd.Stderr = a.output, a.output
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.stop()
		if t.Failed() {
			lines := strings.Split(a.output.String(), "\n")
			t.Logf("kedge agent on %s:\n%s", host.Name, strings.Join(lines[max(0, len(lines)-80):], "\n"))
		}
	})
	return a
}

func (a *agent) stop() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// says waits until the agent's output has the text.
func (a *agent) says(t *testing.T, text string) {
	t.Helper()
	harness.Eventually(t, patience, "the agent to say "+text, func() error {
		if output := a.output.String(); !strings.Contains(output, text) {
			return fmt.Errorf("it says:\n%s", output)
		}
		return nil
	})
}

func waitNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	harness.Eventually(t, patience, "node "+name+" to be Ready", func() error {
		node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is not")
	})
}

func kedge(t *testing.T, host *harness.Host, args ...string) string {
	t.Helper()
	output, err := host.Kedge(t.Context(), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

func TestJoin(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := image.Testserver(repository)
	if err != nil {
		t.Fatal(err)
	}
	network := harness.NewNetwork(t)
	first, second, third := network.NewHost(t, "server-1"), network.NewHost(t, "agent-1"), network.NewHost(t, "agent-2")
	for _, host := range []*harness.Host{first, second, third} {
		host.Preload(archive)
	}
	server := first.StartServer(t)
	server.WaitReady()
	client := server.Client()
	address := first.Address.String() + ":6443"
	text, err := os.ReadFile(first.Path("/var/lib/kedge/server/token"))
	if err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(string(text))

	one := start(t, second, address, token, "--node-label=zone=attic", "--node-taint=kedge.dev/edge=yes:NoSchedule")
	waitNode(t, client, "agent-1")
	one.says(t, "node agent-1 is ready")

	t.Run("labels and taints", func(t *testing.T) {
		taint := corev1.Taint{Key: "kedge.dev/edge", Value: "yes", Effect: corev1.TaintEffectNoSchedule}
		// The taint not-ready goes a moment after the node has become ready.
		harness.Eventually(t, patience, "the node to have its label and only its taint", func() error {
			node, err := client.CoreV1().Nodes().Get(t.Context(), "agent-1", metav1.GetOptions{})
			if err == nil && (node.Labels["zone"] != "attic" || len(node.Spec.Taints) != 1 || node.Spec.Taints[0] != taint) {
				err = fmt.Errorf("labels %v, taints %v", node.Labels, node.Spec.Taints)
			}
			return err
		})
	})

	t.Run("a pod runs, and its logs are there", func(t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "pod-1"},
			Spec: corev1.PodSpec{
				NodeName:   "agent-1",
				Containers: []corev1.Container{{Name: "server", Image: image.TestserverName}},
			},
		}
		if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, patience, "the pod to run", func() error {
			pod, err := client.CoreV1().Pods(namespace).Get(t.Context(), "pod-1", metav1.GetOptions{})
			if err == nil && pod.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("phase %s", pod.Status.Phase)
			}
			return err
		})
		if _, err := client.CoreV1().Pods(namespace).GetLogs("pod-1", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil {
			t.Error(err)
		}
	})

	t.Run("again without the token, by its certificate", func(t *testing.T) {
		one.stop()
		one = start(t, second, address, "")
		one.says(t, "node agent-1 is ready")
	})

	faults := map[string]struct {
		server, token string
		args          []string
		want          string
	}{
		"no token":        {address, "", nil, "has not joined a cluster: give a join token"},
		"bare token":      {address, "secret", nil, "give the whole token"},
		"short and wrong": {address, "secret", []string{"--insecure-short-token"}, "the server does not accept the token"},
		"wrong token":     {address, token + "0", nil, "the server does not accept the token"},
		"wrong authority": {address, strings.Replace(token, token[3:7], "0000", 1), nil, "is not of the token's cluster"},
		"name taken":      {address, token, []string{"--node-name=agent-1"}, "the name agent-1 is taken by another node"},
		"server's name":   {address, token, []string{"--node-name=server-1"}, "a node cannot have the name server-1"},
		"nothing listens": {first.Address.String() + ":6444", token, nil, "nothing listens at"},
		"no answer":       {"172.31.0.200:6443", token, nil, "172.31.0.200:6443 does not answer"},
		"not kedge":       {first.Address.String() + ":10250", token, nil, "not a kedge server"},
		"unresolved name": {"server.invalid:6443", token, nil, "cannot resolve the name"},
		"no address":      {"http://x", "", nil, "invalid server address"},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			a := start(t, third, fault.server, fault.token, fault.args...)
			a.says(t, fault.want)
			a.stop()
		})
	}

	t.Run("a short token, where it is allowed", func(t *testing.T) {
		_, secret, _ := strings.Cut(token, "::server:")
		host := network.NewHost(t, "agent-4")
		a := start(t, host, address, secret, "--insecure-short-token")
		a.says(t, "The hash of its certificate authority is "+token[3:67])
		a.says(t, "This node was given a short token")
		a.says(t, "node agent-4 is ready")
		a.stop()
		if _, err := os.Stat(host.Path("/var/lib/kedge/trusted-ca")); !os.IsNotExist(err) {
			t.Errorf("the node keeps what it trusted first: %v", err)
		}
		a = start(t, host, address, secret)
		a.says(t, "node agent-4 is ready")
		if output := a.output.String(); strings.Contains(output, "without proof") {
			t.Errorf("the node trusts a server anew:\n%s", output)
		}
	})

	t.Run("a token that has ended", func(t *testing.T) {
		short := kedge(t, first, "token", "create", "--ttl=1s")
		time.Sleep(2 * time.Second)
		start(t, third, address, short).says(t, "the server does not accept the token")
	})

	t.Run("a token that ends", func(t *testing.T) {
		token := kedge(t, first, "token", "create", "--ttl=1h", "--description=attic")
		if list := kedge(t, first, "token", "list"); !strings.Contains(list, "attic") {
			t.Errorf("listed:\n%s", list)
		}
		start(t, third, address, token).says(t, "node agent-2 is ready")
		kedge(t, first, "token", "delete", token)
		if list := kedge(t, first, "token", "list"); strings.Contains(list, "attic") {
			t.Errorf("still listed:\n%s", list)
		}
	})

	t.Run("a token that was rotated", func(t *testing.T) {
		rotated := kedge(t, first, "token", "rotate")
		fresh := network.NewHost(t, "agent-3")
		a := start(t, fresh, address, token)
		a.says(t, "the server does not accept the token")
		a.stop()
		start(t, fresh, address, rotated).says(t, "node agent-3 is ready")
	})

	t.Run("a token that was chosen, in k3s's form", func(t *testing.T) {
		old := strings.TrimSpace(kedge(t, first, "token", "rotate"))
		if output, err := first.Kedge(t.Context(), "token", "rotate", "--token="+token, "--new-token=chosen").CombinedOutput(); err == nil || !strings.Contains(string(output), "it is not the token of this cluster's servers") {
			t.Errorf("with another token than the cluster's: %v: %s", err, output)
		}
		chosen := strings.TrimSpace(kedge(t, first, "token", "rotate", "--token="+old, "--new-token=chosen"))
		if !strings.HasPrefix(chosen, "K10") || !strings.HasSuffix(chosen, "::server:chosen") {
			t.Errorf("the new token is %s", chosen)
		}
		fresh := network.NewHost(t, "agent-5")
		a := start(t, fresh, address, old)
		a.says(t, "the server does not accept the token")
		a.stop()
		start(t, fresh, address, chosen).says(t, "node agent-5 is ready")
	})
}
