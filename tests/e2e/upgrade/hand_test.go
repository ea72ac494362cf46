// Package upgrade upgrades clusters under traffic, by hand and by Plans. No request may fail, no container
// may restart, and nothing may be lost.
package upgrade

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// kills is how often an upgrade is killed.
const kills = 10

// hand has the executables between which somebody moves a cluster by hand.
type hand struct {
	*world
	older, newer string
}

// executables returns the last release and the executable to test.
func executables(t *testing.T) (older, newer string) {
	t.Helper()
	return harness.RequireOlder(t), os.Getenv("KEDGE_BINARY")
}

// move makes a host run another executable.
func (h *hand) move(host *harness.Host, restart func(), kedge string) {
	h.Helper()
	h.Logf("%s gets %s", host.Name, versionOf(h.T, kedge))
	host.Install(kedge)
	restart()
	h.runs(host.Name, versionOf(h.T, kedge))
	h.unchanged()
}

// moveKilled is move to the newer executable, for a server that is killed again and again while it starts.
func (h *hand) moveKilled(server *harness.Server) {
	h.Helper()
	h.move(server.Host, func() {
		server.Terminate()
		server.Start()
		for i := range kills {
			time.Sleep(time.Duration(i) * 600 * time.Millisecond)
			server.Kill9()
			server.Start()
		}
		server.WaitReady()
	}, h.newer)
}

// TestSQLite has one server and one agent.
func TestSQLite(t *testing.T) {
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	server := newHost(t, network, "server-1", older).StartServer(t)
	server.WaitReady()
	h := &hand{newWorld(t, network, []*harness.Server{server}, newHost(t, network, "agent-1", older)), older, newer}
	agent := h.agents[0]

	t.Log("an agent must not be newer than its server")
	agent.Terminate()
	agent.Host.Install(newer)
	agent.Start()
	if code := agent.WaitExit(cluster.Patience); code != 1 || !strings.Contains(agent.LogTail(), "newer") {
		t.Errorf("it ended with status %d:\n%s", code, agent.LogTail())
	}
	agent.Host.Install(older)
	agent.Start()
	agent.WaitReady()
	h.unchanged()

	h.moveKilled(server)
	h.works("between", "agent-1")
	h.move(agent.Host, agent.Restart, newer)
	h.works("newer", "agent-1")
	h.move(agent.Host, agent.Restart, older)
	h.move(server.Host, server.Restart, older)
	h.works("back", "agent-1")
	h.unharmed()
}

// TestEtcd has three servers and one agent. The etcd of the newer kedge is newer, too.
func TestEtcd(t *testing.T) {
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	var hosts []*harness.Host
	for _, name := range []string{"server-1", "server-2", "server-3"} {
		hosts = append(hosts, newHost(t, network, name, older))
	}
	servers := cluster.Gather(t, hosts...)
	h := &hand{newWorld(t, network, servers, newHost(t, network, "agent-1", older)), older, newer}
	agent := h.agents[0]

	t.Log("one member is newer, and nothing forbids to go back")
	h.moveKilled(servers[0])
	member.WaitData(t, member.OlderData, hosts...)
	h.works("mixed", "server-2")
	h.move(hosts[0], servers[0].Restart, older)

	for _, server := range servers {
		h.move(server.Host, server.Restart, newer)
	}
	member.WaitData(t, member.Data, hosts...)
	h.works("between", "agent-1")

	t.Log("the older etcd refuses the data, and does not change them")
	last := servers[2]
	last.Terminate()
	last.Host.Install(older)
	last.Start()
	if code := last.WaitExit(cluster.Patience); code == 0 || !strings.Contains(last.LogTail(), "is not supported") {
		t.Errorf("it ended with status %d:\n%s", code, last.LogTail())
	}
	last.Host.Install(newer)
	last.Start()
	last.WaitReady()
	h.unchanged()
	h.move(agent.Host, agent.Restart, newer)
	h.works("newer", "agent-1")

	t.Log("etcd is told before, and then all go back")
	member.AllowOlder(t, hosts...)
	h.move(agent.Host, agent.Restart, older)
	for _, server := range servers {
		h.move(server.Host, server.Restart, older)
	}
	member.WaitVoters(t, servers[0], "server-1", "server-2", "server-3")
	h.works("back", "agent-1")
	h.unharmed()
}

// TestPostgreSQL has two servers and one agent.
func TestPostgreSQL(t *testing.T) {
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	s := store.NewPostgreSQL(t, network)
	s.Start()
	var servers []*harness.Server
	var args []string
	for _, name := range []string{"server-1", "server-2"} {
		host := newHost(t, network, name, older)
		host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.Endpoint)
		server := host.StartServer(t, append(args, s.Files(host)...)...)
		server.WaitReady()
		servers = append(servers, server)
		args = []string{"--token=" + server.Token()}
	}
	h := &hand{newWorld(t, network, servers, newHost(t, network, "agent-1", older)), older, newer}
	agent := h.agents[0]

	h.moveKilled(servers[0])
	h.works("mixed", "server-2")
	h.move(servers[0].Host, servers[0].Restart, older)
	for _, server := range servers {
		h.move(server.Host, server.Restart, newer)
	}
	h.works("between", "agent-1")
	h.move(agent.Host, agent.Restart, newer)
	h.move(agent.Host, agent.Restart, older)
	for _, server := range servers {
		h.move(server.Host, server.Restart, older)
	}
	h.works("back", "agent-1")
	h.unharmed()
}
