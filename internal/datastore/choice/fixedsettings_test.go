package choice

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// TestFixedSettings starts a server with SQLite, once more, and with another service-cidr.
func TestFixedSettings(t *testing.T) {
	dir := t.TempDir()
	for i, test := range []struct{ services, want string }{
		{"10.43.0.0/16", ""},
		{"10.43.0.0/16", ""},
		{"10.50.0.0/16", "settings: service-cidr is 10.50.0.0/16, and this cluster began with 10.43.0.0/16"},
	} {
		store := sqlite.New(sqlite.Config{Dir: dir, Socket: filepath.Join(dir, "socket")})
		cluster := config.Default().Cluster
		cluster.ServiceCIDR = []string{test.services}
		ctx, cancel := context.WithCancel(t.Context())
		group := component.Group{OnReady: cancel}
		group.Add(store)
		group.Add(join.NewFixedSettings(func() (*clientv3.Client, error) { return datastore.NewClient(store.Endpoint()) }, cluster), store)
		err := group.Run(ctx)
		cancel()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("start %d: got %v, want %q", i+1, err, test.want)
		}
	}
}
