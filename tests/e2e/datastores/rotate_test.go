package datastores

import (
	"bytes"
	"os"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

// TestRotateCA replaces the authorities of two servers with one database. One server is down during
// one step, and then during two.
func TestRotateCA(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	s := store.NewPostgreSQL(t, network)
	s.Start()
	first := s.StartServer(network, "server-1")
	first.WaitReady()
	second := s.StartServer(network, "server-2", "--token="+first.Token())
	second.WaitReady()
	c := cluster.Of(t, first)
	c.RunWeb("web", "server-2")
	before := c.Containers()

	rotate := func(args ...string) {
		t.Helper()
		if output, err := first.Host.Kedge(t.Context(), append([]string{"certificate", "rotate-ca"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("kedge certificate rotate-ca %v: %v: %s", args, err, output)
		}
	}
	restart := func(server *harness.Server) {
		t.Helper()
		server.Restart()
		c.Client = first.Client()
	}
	authority := func(server *harness.Server, want int) []byte {
		t.Helper()
		content, err := os.ReadFile(server.Host.Path("/var/lib/kedge/server/tls/server-ca.crt"))
		if n := bytes.Count(content, []byte("BEGIN")); err != nil || n != want {
			t.Errorf("%s has %d certificates, want %d (%v)", server.Host.Name, n, want, err)
		}
		return content
	}
	serves := func() {
		t.Helper()
		c.Answers("web", "http://127.0.0.1:"+cluster.WebPort, "web")
		c.WantSameContainers(before)
	}

	rotate()
	second.WaitLog("restart this server, so that it uses the new ones")
	restart(second)
	restart(first)
	if !bytes.Equal(authority(first, 3), authority(second, 3)) {
		t.Error("the servers have different authorities")
	}
	serves()
	second.Terminate()
	c.Kubectl("delete", "node", "server-2")
	rotate("--finish", "--ignore-pods")
	restart(first)
	second.Start()
	second.WaitLog("starting anew")
	second.WaitReady()
	if !bytes.Equal(authority(first, 1), authority(second, 1)) {
		t.Error("the servers have different authorities at the end")
	}

	second.Terminate()
	c.Kubectl("delete", "node", "server-2")
	rotate()
	restart(first)
	rotate("--finish", "--ignore-pods")
	restart(first)
	second.Start()
	second.WaitLog("if this server was off while the cluster's certificate authorities were replaced, move the folder away")
	second.WaitExit(patience)
	tls := second.Host.Path("/var/lib/kedge/server/tls")
	if err := os.Rename(tls, tls+"-away"); err != nil {
		t.Fatal(err)
	}
	second.Start()
	second.WaitReady()
	if !bytes.Equal(authority(first, 1), authority(second, 1)) {
		t.Error("the server that was down has different authorities")
	}
}
