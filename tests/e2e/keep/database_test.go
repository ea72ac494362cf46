package keep

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

// TestOtherDatastore loses a server with one kind of datastore, and restores to another one.
func TestOtherDatastore(t *testing.T) {
	harness.Require(t)
	for name, make := range map[string]func(*testing.T, *harness.Network) *store.Store{"PostgreSQL": store.NewPostgreSQL, "MariaDB": store.NewMariaDB} {
		t.Run("to "+name, func(t *testing.T) {
			t.Parallel()
			network := harness.NewNetwork(t)
			loseAndChange(t, network, nil, make(t, network))
		})
		t.Run("from "+name, func(t *testing.T) {
			t.Parallel()
			network := harness.NewNetwork(t)
			loseAndChange(t, network, make(t, network), nil)
		})
	}
}

// loseAndChange loses a server with one store, and restores with another. No store stands for SQLite.
func loseAndChange(t *testing.T, network *harness.Network, from, to *store.Store) {
	b := newBucket(t)
	begin := func(name string, with *store.Store) (host *harness.Host, flags []string) {
		host = network.NewHost(t, name)
		b.serve(host)
		if with != nil {
			with.Start()
			host.Setenv("KEDGE_DATASTORE_ENDPOINT", with.Endpoint)
			flags = with.Files(host)
		}
		return host, flags
	}
	host, flags := begin("server-1", from)
	host.WriteFile("/etc/kedge/config.yaml", settings+"disable-agent: true\n")
	server := host.StartServer(t, flags...)
	server.WaitAPI()
	key := makeKey(t, host)
	c := cluster.Of(t, server)
	c.Kubectl("create", "configmap", "last", "--from-literal=value=written")
	last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	fresh, flags := begin("box-2", to)
	fresh.WriteFile("/opt/key", key)
	restoring := slices.Concat(restore, []string{"--key", "/opt/key"}, flags)
	inBackup(c, fresh, last, restoring)
	server.Kill9()
	if from != nil {
		from.Crash()
	}
	run(t, fresh, restoring...)
	server = fresh.StartServer(t, flags...)
	server.WaitAPI()
	again, err := server.Client().CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil || again.UID != last.UID {
		t.Errorf("the last object: %v", err)
	}
}
