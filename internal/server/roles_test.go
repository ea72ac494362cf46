package server

import (
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/controlplane/noderole"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

func TestRoles(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   roles
		elects bool
		labels noderole.Roles
	}{
		"the usual server": {
			func(*config.Config) {},
			roles{api: true, controllers: true, scheduler: true, node: true, objects: choice.SQLite}, false, noderole.Roles{ControlPlane: true},
		},
		"the first of several": {
			func(c *config.Config) { c.Server.ClusterInit = true },
			roles{api: true, controllers: true, scheduler: true, node: true, objects: choice.Member}, true, noderole.Roles{ControlPlane: true, Etcd: true},
		},
		"over a database": {
			func(c *config.Config) { c.Server.Datastore.Endpoint = "postgres://db.example.com/kedge" },
			roles{api: true, controllers: true, scheduler: true, node: true, objects: choice.Database}, true, noderole.Roles{ControlPlane: true},
		},
		"over an etcd of the user's": {
			func(c *config.Config) { c.Server.Datastore.Endpoint = "https://192.0.2.1:2379" },
			roles{api: true, controllers: true, scheduler: true, node: true, objects: choice.OwnEtcd}, true, noderole.Roles{ControlPlane: true},
		},
		"disable-agent": {
			func(c *config.Config) { c.Server.DisableAgent = true },
			roles{api: true, controllers: true, scheduler: true, objects: choice.SQLite}, false, noderole.Roles{ControlPlane: true},
		},
		"disable-apiserver": {
			func(c *config.Config) { c.Agent.Server, c.Server.DisableAPIServer = "https://192.0.2.1:6443", true },
			roles{node: true, objects: choice.Member}, false, noderole.Roles{Etcd: true},
		},
		"disable-etcd": {
			func(c *config.Config) { c.Agent.Server, c.Server.DisableEtcd = "https://192.0.2.1:6443", true },
			roles{api: true, controllers: true, scheduler: true, node: true, objects: choice.OtherMembers}, true, noderole.Roles{ControlPlane: true},
		},
		"an API server alone": {
			func(c *config.Config) {
				c.Server.ClusterInit, c.Server.DisableControllerManager, c.Server.DisableScheduler = true, true, true
			},
			roles{api: true, node: true, objects: choice.Member}, false, noderole.Roles{ControlPlane: true, Etcd: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			test.change(cfg)
			got := rolesOf(cfg, datadir.Dir(t.TempDir()))
			if got != test.want || got.elects() != test.elects || got.labels() != test.labels {
				t.Errorf("got %+v, elects %t, labels %+v", got, got.elects(), got.labels())
			}
		})
	}
}
