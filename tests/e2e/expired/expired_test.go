// Package expired tests an agent whose certificates expired while it was off, and expired tokens.
package expired

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestExpired(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	create := func(args ...string) string {
		t.Helper()
		output, err := c.Server.Host.Kedge(t.Context(), append([]string{"token", "create"}, args...)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(output))
	}

	short := create("--ttl=1s")
	time.Sleep(2 * time.Second)
	host := cluster.NewHost(t, network, "agent-1")
	late := host.StartAgent(t, c.Server, "--token="+short)
	late.WaitLog("the server does not accept the token")
	late.Kill9()

	token := create("--ttl=1h")
	agent := host.StartAgent(t, c.Server, "--token="+token)
	agent.WaitReady()
	c.RunWeb("web", "agent-1")
	before := c.Containers()
	agent.Terminate()
	expire(t, c.Server.Host, host)

	// The token has expired for other hosts, and the certificates have expired for the agent.
	if output, err := c.Server.Host.Kedge(t.Context(), "token", "delete", token).CombinedOutput(); err != nil {
		t.Fatalf("delete the token: %v: %s", err, output)
	}
	for what, args := range map[string][]string{
		"this node's certificates have expired": {"--token="},
		"the server does not accept the token":  {"--token=" + token},
	} {
		agent := host.StartAgent(t, c.Server, args...)
		agent.WaitLog(what)
		agent.Kill9()
	}

	// With a token and the node's password the agent is the same node again.
	agent = host.StartAgent(t, c.Server, "--token="+create("--ttl=1h"))
	agent.WaitReady()
	c.WantSameContainers(before)
	agent.Restart()
}

// expire replaces all certificates of an agent with expired ones.
func expire(t *testing.T, server, agent *harness.Host) {
	t.Helper()
	authority := server.Path("/var/lib/kedge/server/tls/client-ca")
	files, err := filepath.Glob(agent.Path("/var/lib/kedge/agent/tls/*-*.crt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the agent's certificates are %v, %v", files, err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file, "-ca.crt") {
			cluster.Expire(t, authority, file)
		}
	}
}
