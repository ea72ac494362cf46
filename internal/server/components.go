package server

import (
	"context"
	"os"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	"github.com/kedge-dev/kedge/internal/cluster/rotation"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/node/csi"
)

// newDriver returns the driver that makes local volumes on this server's node, or nil.
func (s *server) newDriver() *csi.Driver {
	if !s.roles.node {
		return nil
	}
	return agent.NewDriver(s.dir, s.node.Name, s.cfg.Node, s.cfg.Cluster)
}

// volumePlugins returns the controllers' folder of the user's plugins for volumes. A server that
// is no node makes no folder of the kubelet's.
func (s *server) volumePlugins() string {
	if _, err := os.Stat(datadir.KubeletVolumePlugins); err != nil && !s.roles.node {
		return s.dir.VolumePlugins()
	}
	return datadir.KubeletVolumePlugins
}

// newStatus returns the component that answers `kedge status`.
func (s *server) newStatus(group *component.Group, api *api, driver *csi.Driver) *status.Status {
	told := status.Config{
		Node:       s.node.Name,
		Components: group.Status,
		Datastore:  s.store,
		Tunnels:    s.tunnels.Nodes,
		Cluster: status.ClusterOf(api.ClientConfig("system:kedge:status"), api.Name(),
			s.cfg.Cluster.EnforcesPolicies(), group.Status),
	}
	if driver != nil {
		told.Storage = status.Volumes(driver, api.Informers)
	}
	if api.server != nil {
		told.Problems = func() []status.Problem { return damageProblems(api.server.Damaged()) }
	}
	return status.New(told)
}

// damageProblems returns what `kedge status` says about stored objects that cannot be read.
func damageProblems(damaged []apiserver.DamagedObject) (problems []status.Problem) {
	for _, object := range damaged {
		problems = append(problems, status.Problem{What: object.String(), Do: object.Repair()})
	}
	return problems
}

// newKeeper returns the component that renews this server's certificates.
func (s *server) newKeeper() *renewal.Keeper {
	settings := rotation.Config{
		Certificates: s.certificates,
		Dir:          s.dir,
		Clock:        s.clock,
		Node:         s.node.Name,
		Dial:         s.tunnels.Dial,
		Authorities:  s.store.Authorities,
	}
	if etcd := s.store.Etcd; etcd != nil {
		settings.Members = func() []string {
			members, _ := etcd.Members()
			return members
		}
	}
	return rotation.NewKeeper(settings)
}

// addTunnels adds the tunnels through which other servers' API servers reach this
// server's node.
func (s *server) addTunnels(group *component.Group, api *api, kubeletPort int) {
	settings := tunnel.AgentConfig{
		NodeName:    s.node.Name,
		NodeIPs:     s.node.IPs,
		KubeletPort: kubeletPort,
		PodCIDRs:    s.cfg.Cluster.OwnPodCIDRs(),
		Client:      api.ClientConfig(pki.NodeUser(s.node.Name), pki.NodesGroup, pki.NodeGroup(s.node.Name)),
		TLS:         s.certificates.NodeTLS(),
		Servers:     api.remote,
	}
	after := component.Component(api)
	if s.roles.api {
		settings.Servers, after = s.others, s.others
	}
	group.Add(withoutWaiting(tunnel.NewAgent(settings)), after)
}

// withoutWaiting makes a tunnel's component ready at once, because there may be no other
// server yet, or none may be up.
func withoutWaiting(tunnel component.Component) component.Component {
	return component.Func(tunnel.Name(), func(ctx context.Context, ready func()) error {
		ready()
		return tunnel.Run(ctx, func() {})
	})
}
