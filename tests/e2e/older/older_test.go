// Package older updates servers and nodes that started with an older kedge.
package older

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// TestRegistrations: a node that joined before registrations existed must keep working when its
// server is updated, and must get certificates with its registration by itself.
func TestRegistrations(t *testing.T) {
	older := harness.RequireOldest(t)
	network := harness.NewNetwork(t)
	first := cluster.NewHost(t, network, "server-1")
	first.Install(older)
	server := first.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	var agents []*harness.Agent
	for _, name := range []string{"agent-1", "agent-2"} {
		host := cluster.NewHost(t, network, name)
		host.Install(older)
		agent := host.StartAgent(t, server)
		agent.WaitReady()
		c.RunWeb("on-"+name, name)
		agents = append(agents, agent)
	}
	for _, agent := range agents {
		if group, err := registrationOf(agent.Host); err != nil || group != "" {
			t.Fatalf("the older kedge has registrations: %q, %v", group, err)
		}
	}
	before := c.Containers()

	t.Log("the server is updated, and the nodes are not")
	first.Install(os.Getenv("KEDGE_BINARY"))
	wantRefusal(t, first.Kedge(t.Context(), "status"), "an older kedge runs on this host", "systemctl restart kedge")
	server.Restart()
	wantRefusal(t, first.Command(t.Context(), older, "status"), "kedge is not running on this host")
	for _, agent := range agents {
		agent.WaitReady()
		pod := "on-" + agent.Host.Name
		c.In(pod, "exec in "+pod, func(output string) bool { return strings.Contains(output, "hostname="+pod) },
			"/testserver", "fetch", "http://127.0.0.1:"+cluster.WebPort)
	}
	c.WantSameContainers(before)

	t.Log("a node is updated")
	updated := agents[0].Host
	updated.Install(os.Getenv("KEDGE_BINARY"))
	agents[0].Restart()
	c.Eventually("the node to have certificates of its registration", func() error {
		group, err := registrationOf(updated)
		if err == nil && group == "" {
			err = fmt.Errorf("it has none")
		}
		return err
	})
	c.In("on-agent-1", "exec in on-agent-1", func(output string) bool { return strings.Contains(output, "hostname=on-agent-1") },
		"/testserver", "fetch", "http://127.0.0.1:"+cluster.WebPort)
	c.WantSameContainers(before)

	t.Log("the other node keeps working, also after a restart")
	agents[1].Restart()
	c.WantSameContainers(before)
	output, err := first.Kedge(t.Context(), "node", "list").CombinedOutput()
	if err != nil {
		t.Errorf("kedge node list: %v", err)
	}
	t.Logf("kedge node list:\n%s", output)
}

// wantRefusal checks that a command fails, because the running kedge has another version, with a
// message that has each of the words.
func wantRefusal(t *testing.T, command *harness.Cmd, words ...string) {
	t.Helper()
	output, err := command.CombinedOutput()
	for _, word := range words {
		if err == nil || !strings.Contains(string(output), word) {
			t.Errorf("%q is not in: %v\n%s", word, err, output)
		}
	}
}

// registrationOf returns the group of the registration in an agent's certificate, or "" if there is
// none.
func registrationOf(host *harness.Host) (string, error) {
	text, err := os.ReadFile(host.Path("/var/lib/kedge/agent/tls/client-kubelet.crt"))
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", fmt.Errorf("no certificate in %q", text)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	groups := cert.Subject.Organization
	i := slices.IndexFunc(groups, func(group string) bool { return strings.HasPrefix(group, "kedge:registration:") })
	if i < 0 {
		return "", nil
	}
	return groups[i], nil
}
