package datastores

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

func TestAdoptFromPostgreSQL(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	adoptFrom(t, network, store.NewPostgreSQL(t, network))
}

func TestAdoptFromMariaDB(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	adoptFrom(t, network, store.NewMariaDB(t, network))
}

// adoptFrom takes a cluster over whose k3s keeps its objects in a database. A kedge writes the
// database, because its table is k3s's. The files of that kedge have k3s's names too.
func adoptFrom(t *testing.T, network *harness.Network, s *store.Store) {
	s.Start()
	before := s.StartServer(network, "server-1", "--secrets-encryption=false")
	before.WaitReady()
	c := cluster.Of(t, before)
	c.Kubectl("create", "configmap", "kept", "--from-literal=a=b")
	makeSecret(c, "kept")
	c.Kubectl("create", "configmap", "gone")
	c.Kubectl("delete", "configmap", "gone")
	get := []string{"get", "configmap,secret", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`}
	want := c.Kubectl(get...)

	host := cluster.NewHost(t, network, "server-2")
	host.WriteFile("/var/lib/rancher/k3s/server/token", "placeholder")
	copied := func(from, to string) {
		if output, err := exec.Command("cp", "--archive", "-T", before.Host.Path(from), host.Path(to)).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v: %s", from, err, output)
		}
	}
	copied("/var/lib/kedge/server", "/var/lib/rancher/k3s/server")
	settings := fmt.Sprintf("datastore-endpoint: %q\n", s.Endpoint)
	for _, argument := range s.Files(host) {
		name, value, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		settings += name + ": " + value + "\n"
	}
	host.WriteFile("/etc/rancher/k3s/config.yaml", settings)

	output, err := host.Kedge(t.Context(), "adopt", "k3s").CombinedOutput()
	if err == nil || !strings.Contains(string(output), "is in use from "+before.Host.Address.String()) {
		t.Errorf("while a server uses the database: %v: %s", err, output)
	}
	before.Terminate()
	output, err = host.Kedge(t.Context(), "adopt", "k3s").CombinedOutput()
	if err != nil || strings.Contains(string(output), store.Password) {
		t.Fatalf("%v: %s", err, output)
	}
	s.Crash()
	after := host.StartServer(t)
	after.WaitReady()
	c = cluster.Of(t, after)
	if got := c.Kubectl(get...); got != want {
		t.Errorf("there are %s, want %s", got, want)
	}
	wantSecrets(c, "kept")
}
