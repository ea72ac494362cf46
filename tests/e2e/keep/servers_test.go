package keep

import (
	"regexp"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// ofServer finds the server that has written a backup, in what kedge restore says.
var ofServer = regexp.MustCompile(`the cluster of server (\S+) `)

// TestLoseAllServers loses one of three servers, whose place in the backup another one takes, and then all of them at once. One is restored, and the others join it.
func TestLoseAllServers(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	network := harness.NewNetwork(t)
	b := newBucket(t)
	hosts := map[string]*harness.Host{}
	servers := map[string]*harness.Server{}
	names := []string{"server-1", "server-2", "server-3"}
	for _, name := range names {
		hosts[name] = network.NewHost(t, name)
		b.serve(hosts[name])
		hosts[name].WriteFile("/etc/kedge/config.yaml", settings+"disable-agent: true\n")
	}
	gather := func(first string) {
		servers[first] = hosts[first].StartServer(t, "--cluster-init")
		servers[first].WaitAPI()
		for _, name := range names {
			if name != first {
				servers[name] = hosts[name].StartServer(t, cluster.Joining(servers[first])...)
				servers[name].WaitAPI()
			}
		}
	}
	gather("server-1")
	key := makeKey(t, hosts["server-1"])
	w := &writer{t: t}
	done := make(chan struct{})
	client := servers["server-2"].Client()
	go func() {
		w.write(client)
		close(done)
	}()
	time.Sleep(5 * time.Second)
	servers["server-1"].Kill9()
	c := cluster.Of(t, servers["server-2"])
	c.Kubectl("create", "configmap", "last", "--from-literal=value=written")
	last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restore := append(slices.Clone(restore), "--key", "/opt/key")
	hosts["server-3"].WriteFile("/opt/key", key)
	inBackup(c, hosts["server-3"], last, restore)

	died := time.Now()
	for _, name := range names {
		hosts[name].LoseDisk()
		servers[name].Exited()
		b.serve(hosts[name])
		hosts[name].WriteFile("/opt/key", key)
	}
	<-done
	wrote := ofServer.FindStringSubmatch(run(t, hosts["server-1"], append(restore, "--check")...))
	if wrote == nil || !slices.Contains(names, wrote[1]) {
		t.Fatalf("the backup is of %q", wrote)
	}
	t.Log(run(t, hosts[wrote[1]], restore...))
	for _, name := range names {
		hosts[name].WriteFile("/etc/kedge/config.yaml", settings+"disable-agent: true\n")
	}
	gather(wrote[1])
	for _, name := range names {
		if again, err := servers[name].Client().CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{}); err != nil || again.UID != last.UID {
			t.Errorf("on %s, the last object: %v", name, err)
		}
	}
	w.found(servers["server-3"].Client(), died.Add(-mayLose()))
}
