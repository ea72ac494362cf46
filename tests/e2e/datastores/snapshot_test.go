package datastores

import (
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

func TestSnapshotOfPostgreSQL(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	saveAndRestore(t, network, store.NewPostgreSQL(t, network), "schema kine_replaced_")
}

func TestSnapshotOfMariaDB(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	saveAndRestore(t, network, store.NewMariaDB(t, network), "table kine_replaced_")
}

// saveAndRestore saves a cluster of two servers with one database on the second server and restores
// it on the first. The restore is refused while the second server runs.
func saveAndRestore(t *testing.T, network *harness.Network, s *store.Store, kept string) {
	s.Start()
	begin := func(name string, args ...string) *harness.Server {
		server := s.StartServer(network, name, args...)
		server.WaitReady()
		return server
	}
	first := begin("server-1")
	second := begin("server-2", "--token="+first.Token())
	c := cluster.Of(t, first)
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "server-2")
	saved := c.SaveAndChange(second.Host)
	restore := append([]string{"restore"}, s.Files(first.Host)...)
	restore = append(restore, saved.File)

	first.Terminate()
	c.RefusedSnapshot(first.Host, []string{"is in use from " + second.Host.Address.String(), "stop kedge on every server"}, restore...)
	second.Terminate()
	saved.Refusals("etcd")
	output := c.MustSnapshot(first.Host, restore...)
	for _, want := range []string{"as node server-2 saved it", kept, "start them after this one"} {
		if !strings.Contains(output, want) || strings.Contains(output, store.Password) {
			t.Errorf("restore said %q, which lacks %q", output, want)
		}
	}
	first.Start()
	first.WaitReady()
	second.Start()
	second.WaitReady()
	saved.WantRestored()
}
