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

// hand is a world whose nodes get the older or the newer executable by hand.
type hand struct {
	*world
	older, newer string
}

// executables returns the last release, and the executable to test.
func executables(t *testing.T) (older, newer string) {
	t.Helper()
	return harness.RequireOlder(t), os.Getenv("KEDGE_BINARY")
}

// move makes nodes run an executable, one after the other.
func (h *hand) move(kedge string, nodes ...node) {
	h.Helper()
	for _, n := range nodes {
		n.Install(kedge)
		n.Restart()
		h.moved(kedge, n)
	}
}

// moveKilled is move to the newer executable, for a node that is killed again and again while it starts.
func (h *hand) moveKilled(n node) {
	h.Helper()
	n.Terminate()
	n.Install(h.newer)
	n.Start()
	for i := range kills {
		time.Sleep(time.Duration(i) * 600 * time.Millisecond)
		n.Kill9()
		n.Start()
	}
	n.WaitReady()
	h.moved(h.newer, n)
}

func (h *hand) moved(kedge string, n node) {
	h.Helper()
	version := versionOf(h.T, kedge)
	h.runs(n.Name, version)
	h.unchanged()
	h.Logf("%s runs %s", n.Name, version)
}

// refused checks that a node refuses to run an executable with a message, and then runs another one as
// if nothing had happened.
func (h *hand) refused(n node, kedge, message, other string) {
	h.Helper()
	n.Terminate()
	n.Install(kedge)
	n.Start()
	if code := n.WaitExit(cluster.Patience); code == 0 || !strings.Contains(n.LogTail(), message) {
		h.Errorf("%s ended with status %d, and not with %q:\n%s", n.Name, code, message, n.LogTail())
	}
	n.Install(other)
	n.Start()
	n.WaitReady()
	h.moved(other, n)
}

// TestSQLite has one server and one agent.
func TestSQLite(t *testing.T) {
	t.Parallel()
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	server := newHost(t, network, "server-1", older).StartServer(t)
	server.WaitReady()
	h := &hand{newWorld(t, network, []*harness.Server{server}, newHost(t, network, "agent-1", older)), older, newer}

	h.refused(h.agents[0], newer, "a node must not be newer", older)
	h.moveKilled(h.servers[0])
	h.works("between", "agent-1")
	h.move(newer, h.agents...)
	h.works("newer", "agent-1")

	h.move(older, h.agents...)
	h.move(older, h.servers...)
	h.works("back", "agent-1")
	h.unharmed()
}

// TestEtcd has three servers and one agent. The newer kedge has a newer etcd.
func TestEtcd(t *testing.T) {
	t.Parallel()
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	var hosts []*harness.Host
	for _, name := range []string{"server-1", "server-2", "server-3"} {
		hosts = append(hosts, newHost(t, network, name, older))
	}
	servers := cluster.Gather(t, hosts...)
	h := &hand{newWorld(t, network, servers, newHost(t, network, "agent-1", older)), older, newer}

	t.Log("while one member is newer, nothing forbids to go back")
	h.moveKilled(h.servers[0])
	member.WaitData(t, member.OlderData, hosts...)
	h.works("mixed", "server-2")
	h.move(older, h.servers[0])

	h.move(newer, h.servers...)
	member.WaitData(t, member.Data, hosts...)
	h.works("between", "agent-1")
	h.refused(h.servers[2], older, "is not supported", newer)
	h.move(newer, h.agents...)
	h.works("newer", "agent-1")

	t.Log("etcd is told, and then all go back")
	member.AllowOlder(t, hosts...)
	h.move(older, h.agents...)
	h.move(older, h.servers...)
	member.WaitVoters(t, servers[0], "server-1", "server-2", "server-3")
	h.works("back", "agent-1")
	h.unharmed()
}

// TestPostgreSQL has two servers and one agent.
func TestPostgreSQL(t *testing.T) {
	t.Parallel()
	older, newer := executables(t)
	network := harness.NewNetwork(t)
	s := store.NewPostgreSQL(t, network)
	s.Start()
	var servers []*harness.Server
	var token []string
	for _, name := range []string{"server-1", "server-2"} {
		host := newHost(t, network, name, older)
		host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.Endpoint)
		server := host.StartServer(t, append(s.Files(host), token...)...)
		server.WaitReady()
		servers, token = append(servers, server), []string{"--token=" + server.Token()}
	}
	h := &hand{newWorld(t, network, servers, newHost(t, network, "agent-1", older)), older, newer}

	h.moveKilled(h.servers[0])
	h.works("mixed", "server-2")
	h.move(older, h.servers[0])

	h.move(newer, h.servers...)
	h.works("between", "agent-1")
	h.move(newer, h.agents...)
	h.works("newer", "agent-1")

	h.move(older, h.agents...)
	h.move(older, h.servers...)
	h.works("back", "agent-1")
	h.unharmed()
}
