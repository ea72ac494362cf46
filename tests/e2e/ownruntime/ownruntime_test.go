// Package ownruntime runs an agent with a container runtime that is not kedge's.
package ownruntime

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/fakecri"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestOwnRuntime runs an agent with a fake container runtime that starts after the agent, and gives
// its kubelet another port.
func TestOwnRuntime(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	host := network.NewHost(t, "agent-1")
	agent := host.StartAgent(t, c.Server, "--container-runtime-endpoint="+fakecri.Endpoint, "--kubelet-arg=port=10350")
	agent.WaitLog("No container runtime answers at /run/fakecri.sock: stat /run/fakecri.sock: no such file or directory: start it")
	fakecri.Start(t, host)
	agent.WaitReady()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "fake"},
		Spec: corev1.PodSpec{
			NodeName:   "agent-1",
			Containers: []corev1.Container{{Name: "fake", Image: "example.com/fake:1"}},
		},
	}
	c.Eventually("a pod to be made", func() error {
		_, err := c.Client.CoreV1().Pods(cluster.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
	node, err := c.Client.CoreV1().Nodes().Get(t.Context(), "agent-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ip := c.Pod("fake").Status.PodIP; !netip.MustParsePrefix(node.Spec.PodCIDR).Contains(netip.MustParseAddr(ip)) {
		t.Errorf("got pod address %s, want one in the range of its node, %s", ip, node.Spec.PodCIDR)
	}
	if got := node.Status.DaemonEndpoints.KubeletEndpoint.Port; got != 10350 {
		t.Errorf("the node tells the port %d", got)
	}
	c.Eventually("the kubelet to answer through the tunnel", func() error {
		pods, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/agent-1/proxy/pods")
		if err == nil && !strings.Contains(pods, `"fake"`) {
			err = fmt.Errorf("it says %s", pods)
		}
		return err
	})
	if pods := output(t, host.Kedge(t.Context(), "crictl", "pods")); !strings.Contains(pods, "fake") {
		t.Errorf("crictl lists the pods\n%s", pods)
	}
	if plugin := output(t, host.Command(t.Context(), "readlink", "-e", "/opt/cni/bin/bridge")); !strings.HasSuffix(plugin, "/bin/cni") {
		t.Errorf("the plugin that runtimes find is %s", plugin)
	}
	agent.Restart()

	output(t, host.Kedge(t.Context(), "killall"))
	pods, err := cri.NewRuntimeServiceClient(fakecri.Connect(t, host)).ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("killall left the pods %v, %v", pods.GetItems(), err)
	}
	if left := output(t, host.Command(t.Context(), "sh", "-c",
		"for folder in /etc/cni/net.d /opt/cni/bin; do [ ! -e $folder ] || find $folder -mindepth 1; done")); left != "" {
		t.Errorf("killall left\n%s", left)
	}
}

func output(t *testing.T, cmd *harness.Cmd) string {
	t.Helper()
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
