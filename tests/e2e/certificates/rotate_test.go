package certificates

import (
	"bytes"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestRotateCA replaces the authorities while a pod serves, with an agent that is not restarted
// until the end.
func TestRotateCA(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	pod := c.RunWeb("web", "agent-1")
	before := c.Containers()
	served := serve(t, agent.Host, pod.Status.PodIP)
	// old uses the kubeconfig from before the change.
	old := c.Server.Client()
	oldWorks := func() error {
		_, err := old.Discovery().ServerVersion()
		return err
	}
	rotate := func(args ...string) (string, error) {
		output, err := c.Server.Host.Kedge(t.Context(), append([]string{"certificate", "rotate-ca"}, args...)...).CombinedOutput()
		return string(output), err
	}
	refused := func(want ...string) {
		t.Helper()
		output, err := rotate("--finish")
		if err == nil {
			t.Fatalf("it did not refuse: %s", output)
		}
		for _, text := range want {
			if !strings.Contains(output, text) {
				t.Errorf("it says %s, and not %s", output, text)
			}
		}
	}
	// take restarts the server. The agent follows by itself.
	take := func() {
		t.Helper()
		c.Server.Kill9()
		c.Server.Start()
		c.Server.WaitReady()
		c.Client = c.Server.Client()
		reads(c, "web")
	}

	refused("run `kedge certificate rotate-ca`")
	output, err := rotate()
	if err != nil {
		t.Fatalf("prepare new authorities: %v: %s", err, output)
	}
	take()
	follows(t, agent, 1)
	if token := c.Server.Token(); !strings.Contains(output, token) {
		t.Errorf("the token is %s, and was told: %s", token, output)
	}
	if err := oldWorks(); err != nil {
		t.Errorf("a copy of the kubeconfig from before: %v", err)
	}
	reads(c, "web")
	if output, err := rotate(); err == nil || !strings.Contains(output, "--finish") {
		t.Errorf("once more: %v, %s", err, output)
	}
	refused("default/web")

	if output, err := rotate("--finish", "--ignore-pods"); err != nil {
		t.Fatalf("drop the old authorities: %v: %s", err, output)
	}
	take()
	follows(t, agent, 2)
	if err := oldWorks(); err == nil {
		t.Error("the old authority's kubeconfig is still accepted")
	}
	reads(c, "web")
	c.RunWeb("after", "agent-1")
	reads(c, "after")
	c.Kubectl("delete", "pod", "after")
	authority, err := os.ReadFile(c.Server.Host.Path(serverTLS + "/server-ca.crt"))
	if err != nil || bytes.Count(authority, []byte("BEGIN")) != 1 {
		t.Errorf("server-ca.crt: got %v, want one certificate:\n%s", err, authority)
	}
	roots, err := os.ReadFile(c.Server.Host.Path(serverTLS + "/kube-root-ca.crt"))
	if err != nil || bytes.Count(roots, []byte("BEGIN")) != 2 || !bytes.HasPrefix(roots, authority) {
		t.Errorf("kube-root-ca.crt: got %v, want two certificates, the first one that of server-ca.crt:\n%s", err, roots)
	}
	c.Eventually("pods to be told the new authorities alone", func() error {
		if told := c.Kubectl("get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`); strings.TrimSpace(told) != strings.TrimSpace(string(roots)) {
			return errors.New(told)
		}
		return nil
	})
	for _, host := range []*harness.Host{c.Server.Host, agent.Host} {
		if output, err := host.Kedge(t.Context(), "certificate", "check").CombinedOutput(); err != nil {
			t.Errorf("check on %s: %v\n%s", host.Name, err, output)
		}
	}
	c.WantSameContainers(before)
	if n := strings.Count(agent.Log(), " starts "); n != 1 {
		t.Errorf("the agent has started %d times", n)
	}
	agent.Restart()
	c.Server.Restart()
	reads(c, "web")
	c.WantSameContainers(before)
	served()
}

// follows waits until an agent has renewed its certificates this many times.
func follows(t *testing.T, agent *harness.Agent, times int) {
	t.Helper()
	harness.Eventually(t, cluster.Patience, "the agent to follow", func() error {
		if renewed := regexp.MustCompile(`Renewed \d+ certificates`).FindAllString(agent.Log(), -1); len(renewed) != times {
			return errors.New("it did not")
		}
		return nil
	})
}

// reads reads a file in a pod, through the tunnel of its node.
func reads(c *cluster.Cluster, pod string) {
	c.Helper()
	c.Answers(pod, "http://127.0.0.1:"+cluster.WebPort, pod)
	c.Kubectl("logs", pod)
}
