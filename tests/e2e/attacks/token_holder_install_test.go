package attacks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestTokenInSight looks for the join token of a node's kedge where other users than root can read
// it and, on an agent, where it would outlive the join.
func TestTokenInSight(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--agent-token=agents-secret", "--s3-access-key=a-key", "--s3-secret-key=a-secret-key")
	token := c.Server.Token()
	host := cluster.NewHost(t, network, "agent-1")
	// install.sh leaves the files like this.
	const environment = "/etc/kedge/kedge.env"
	host.WriteFile(environment, "KEDGE_NODE_NAME='agent-1'\nKEDGE_TOKEN='"+token+"'\n")
	host.Setenv("KEDGE_TOKEN", token)
	agent := host.StartAgent(t, c.Server)
	agent.WaitReady()
	c.RunWeb("web", host.Name)

	for host, secrets := range map[*harness.Host][]string{
		c.Server.Host: {"agents-secret", "a-key", "a-secret-key"},
		host:          {token},
	} {
		processes, err := filepath.Glob(host.Path("/proc/[0-9]*/cmdline"))
		if err != nil {
			t.Fatal(err)
		}
		seen := false
		for _, path := range processes {
			line, err := os.ReadFile(path)
			if err != nil {
				continue // the process has ended
			}
			seen = seen || strings.Contains(string(line), "--data-dir") || strings.Contains(string(line), "kedge")
			for _, secret := range secrets {
				if strings.Contains(string(line), secret) {
					t.Errorf("%q is in a command line of %s, which all may read", secret, host.Name)
				}
			}
		}
		if !seen {
			t.Errorf("kedge is not among the processes of %s", host.Name)
		}
	}

	t.Log("root on the agent")
	environments, err := filepath.Glob(host.Path("/proc/[0-9]*/environ"))
	if err != nil {
		t.Fatal(err)
	}
	shims := 0
	for _, path := range environments {
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || !strings.Contains(string(line), "containerd-shim") {
			continue
		}
		shims++
		if variables, err := os.ReadFile(path); err != nil || strings.Contains(string(variables), token) {
			t.Errorf("a shim, which runs as long as its pod, has the server's token: %v", err)
		}
	}
	if shims == 0 {
		t.Error("no shims are running, so the test shows nothing")
	}
	text, err := os.ReadFile(host.Path(environment))
	if err != nil || string(text) != "KEDGE_NODE_NAME='agent-1'\n" {
		t.Errorf("the service's environment is %q, %v", text, err)
	}
	agent.WaitLog("This node was given the server's token")

	t.Log("the agent needs no token any more")
	agent.Terminate()
	host.Setenv("KEDGE_TOKEN", "")
	agent = host.StartAgent(t, c.Server, "--token=")
	agent.WaitReady()
}
