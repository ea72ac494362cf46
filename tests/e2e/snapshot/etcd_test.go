package snapshot

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestEtcd saves one server with etcd, and restores it on a new disk with a token that somebody kept.
func TestEtcd(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t), "--cluster-init")
	c.RunWeb("web", "server-1")
	host := c.Server.Host
	saved := c.SaveAndChange(host)
	token := c.Server.Token()
	c.Server.Terminate()
	saved.Refusals("sqlite")

	run(t, host, "mv", serverDir, "/var/lib/kedge/lost")
	refused(c, []string{"of the kind etcd, and this server's is sqlite", "cluster-init"}, "restore", saved.File)
	refused(c, []string{"this host has no token", "--token"}, "restore", "--cluster-init", saved.File)
	must(c, "restore", "--cluster-init", "--token="+token, saved.File)
	c.Server.Start()
	c.Server.WaitReady()
	saved.WantRestored()
}

// TestRestoreOnOther saves on one of three servers and restores on another one. The others join that one
// again.
func TestRestoreOnOther(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network, "--cluster-init")
	join := []string{"--server=https://" + c.Server.Host.Address.String() + ":6443", "--token=" + c.Server.Token()}
	var others []*harness.Server
	for _, name := range []string{"server-2", "server-3"} {
		other := cluster.NewHost(t, network, name).StartServer(t, join...)
		other.WaitReady()
		others = append(others, other)
	}
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "server-2")
	saved := c.SaveAndChange(others[1].Host)
	for _, server := range append(others, c.Server) {
		server.Terminate()
	}
	saved.Refusals("sql")
	output := must(c, "restore", saved.File)
	for _, want := range []string{"as node server-3 saved it", serverDir + "/replaced-", "On each other server: stop kedge, move " + serverDir + "/db/etcd away", join[0][:len("--server")]} {
		if !strings.Contains(output, want) {
			t.Errorf("restore said %q, which lacks %q", output, want)
		}
	}
	c.Server.Start()
	c.Server.WaitReady()
	for _, other := range others {
		run(t, other.Host, "mv", serverDir+"/db/etcd", serverDir+"/etcd.old")
		other.Start()
		other.WaitReady()
	}
	for _, node := range []string{"server-1", "server-2", "server-3"} {
		c.WaitNode(node, corev1.ConditionTrue)
	}
	saved.WantRestored()
}
