package server

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/metrics"
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
			cfg.DataDir = t.TempDir()
			test.change(cfg)
			got := resolveRoles(cfg).roles
			if got != test.want || got.elects() != test.elects || got.labels() != test.labels {
				t.Errorf("got %+v, elects %t, labels %+v", got, got.elects(), got.labels())
			}
		})
	}
}

// TestMetrics checks which parts of a server serve metrics, and where other hosts find those of the
// controllers and the scheduler.
func TestMetrics(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.1")
	for name, test := range map[string]struct {
		change func(*config.Config)
		serves []metrics.Part
		etcd   metrics.Part
		ports  map[metrics.Part]int32
	}{
		"the usual server": {
			func(*config.Config) {},
			[]metrics.Part{metrics.APIServer, metrics.Controllers, metrics.DNS, metrics.Kubelet, metrics.Proxy, metrics.Scheduler}, metrics.Kubelet,
			map[metrics.Part]int32{metrics.Controllers: 10257, metrics.Scheduler: 10259},
		},
		"etcd without a node, and the user's ports": {
			func(c *config.Config) {
				c.Server.ClusterInit, c.Server.DisableAgent = true, true
				c.Server.KubeControllerManagerArgs = []string{"secure-port=12345", "bind-address=::"}
				c.Server.KubeSchedulerArgs = []string{"secure-port=0"}
			},
			[]metrics.Part{metrics.APIServer, metrics.Controllers, metrics.Etcd, metrics.Scheduler}, metrics.APIServer,
			map[metrics.Part]int32{metrics.Controllers: 12345},
		},
		"etcd only, without DNS, on loopback": {
			func(c *config.Config) {
				c.Agent.Server, c.Server.DisableAPIServer, c.Cluster.Disable = "https://192.0.2.2:6443", true, []string{"coredns"}
				c.Server.KubeControllerManagerArgs = []string{"bind-address=127.0.0.1"}
				c.Server.KubeSchedulerArgs = []string{"bind-address=::1"}
			},
			[]metrics.Part{metrics.Etcd, metrics.Kubelet, metrics.Proxy}, metrics.Kubelet,
			map[metrics.Part]int32{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			cfg.DataDir = t.TempDir()
			test.change(cfg)
			division := resolveRoles(cfg).roles.metrics(cfg.Cluster)
			var serves []metrics.Part
			for _, part := range []metrics.Part{metrics.APIServer, metrics.Controllers, metrics.DNS, metrics.Etcd, metrics.Kubelet, metrics.Proxy, metrics.Scheduler} {
				if division.Serves(part) {
					serves = append(serves, part)
				}
			}
			slices.Sort(serves)
			slices.Sort(test.serves)
			if ports := metricsPorts(cfg.Server, node); !slices.Equal(serves, test.serves) || division.EtcdPort() != test.etcd || !maps.Equal(ports, test.ports) {
				t.Errorf("serves %v, etcd's at the port of %s, other hosts find %v", serves, division.EtcdPort(), ports)
			}
		})
	}
}
