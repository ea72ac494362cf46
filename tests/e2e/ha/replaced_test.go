package ha

import (
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
)

// TestReplace replaces a server with an empty disk and a server by another machine, also while one
// server is down. Clients keep writing.
func TestReplace(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	servers := cluster.Gather(t, network.NewHost(t, "server-1"), network.NewHost(t, "server-2"), network.NewHost(t, "server-3"))
	one, two, three := servers[0], servers[1], servers[2]
	c := startTraffic(t, one, two)
	remove := func(node string) {
		t.Helper()
		if err := one.Client().CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	t.Log("the same machine with an empty disk")
	three.Kill9()
	remove("server-3")
	member.WaitVoters(t, one, "server-1", "server-2")
	folders, err := filepath.Glob(three.Host.Path("/var/lib/kedge/*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("find its data: %v, %v", folders, err)
	}
	for _, folder := range folders {
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
	}
	again := three.Host.StartServer(t, cluster.Joining(one)...)
	again.WaitReady()
	member.WaitVoters(t, one, "server-1", "server-2", "server-3")
	c.goesOn()

	t.Log("another machine joins while the server that it replaces is down")
	again.Kill9()
	four := network.NewHost(t, "server-4").StartServer(t, cluster.Joining(one)...)
	four.WaitReady()
	one.WaitLog("A server joins while these members are down: server-3")
	member.WaitVoters(t, one, "server-1", "server-2", "server-3", "server-4")
	remove("server-3")
	member.WaitVoters(t, one, "server-1", "server-2", "server-4")
	c.goesOn()

	t.Log("a member is not removed while the quorum needs it")
	two.Kill9()
	remove("server-4")
	member.Leader(t, one, four).WaitLog("Node server-4 was deleted, but its etcd member stays for now: of the 2 other members with a vote, 1 answer and 2 would be needed")
	member.WaitVoters(t, one, "server-1", "server-2", "server-4")
	c.goesOn()
	two.Start()
	two.WaitReady()
	member.WaitVoters(t, one, "server-1", "server-2")
	ends(t, four, "no longer a member of the cluster's etcd")
	c.goesOn()
	c.end()
}
