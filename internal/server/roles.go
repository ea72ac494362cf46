package server

import (
	"errors"
	"net/netip"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/controlplane/noderole"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

// roles are the parts that a server runs, and the place where it keeps its objects. Run
// resolves them once. The boot list asks only them whether a part belongs to this server:
//
//	                    | api | controllers, scheduler | node | objects
//	the usual server    | yes | yes                    | yes  | SQLite, or what several servers share
//	disable-agent       | yes | yes                    | no   | the same
//	disable-apiserver   | no  | no                     | yes  | Member
//	disable-etcd        | yes | yes                    | yes  | OtherMembers
type roles struct {
	// api says that the API server runs in this process. If it does not, the parts of
	// this server use the API servers on other servers.
	api                    bool
	controllers, scheduler bool
	// node says that this server is a node, too.
	node    bool
	objects choice.Kind
}

func rolesOf(cfg *config.Config, dir datadir.Dir) roles {
	api := !cfg.Server.DisableAPIServer
	return roles{
		api:         api,
		controllers: api && !cfg.Server.DisableControllerManager,
		scheduler:   api && !cfg.Server.DisableScheduler,
		node:        !cfg.Server.DisableAgent,
		objects:     choice.Of(cfg, dir),
	}
}

// ResolveNode decides the name and the addresses of a server's host, as host.ResolveNode does.
// It also works on a host without a network, if the server runs no node and its API listens
// only on a loopback address. Then the server has that address, because no other host
// reaches it anyway.
func ResolveNode(cfg *config.Config) (host.Node, error) {
	ranges := cfg.Cluster.PodCIDRs()
	node, err := host.ResolveNode(cfg.Node, ranges)
	if !errors.Is(err, host.ErrNoRoute) {
		return node, err
	}
	bind, wrong := netip.ParseAddr(cfg.Server.BindAddress)
	roles := rolesOf(cfg, datadir.Dir(cfg.DataDir))
	if wrong != nil || !bind.IsLoopback() || bind.Is4() != ranges[0].Addr().Is4() || roles.node || roles.objects.Shared() {
		return node, err
	}
	name, err := host.NodeName(cfg.Node)
	return host.Node{Name: name, IPs: []netip.Addr{bind}}, err
}

// elects tells whether controllers and scheduler run only while this server is elected. A
// server that runs neither of them must not be elected.
func (r roles) elects() bool { return r.objects.Shared() && (r.controllers || r.scheduler) }

// labels returns the roles that users see on the server's Node.
func (r roles) labels() noderole.Roles {
	return noderole.Roles{ControlPlane: r.api, Etcd: r.objects == choice.Member}
}

// metrics returns where this server serves which metrics.
func (r roles) metrics(cluster config.Cluster) *metrics.Division {
	var parts []metrics.Part
	for part, has := range map[metrics.Part]bool{
		metrics.APIServer:   r.api,
		metrics.Controllers: r.controllers,
		metrics.Scheduler:   r.scheduler,
		metrics.Etcd:        r.objects == choice.Member,
	} {
		if has {
			parts = append(parts, part)
		}
	}
	if r.node {
		parts = append(parts, agent.Metered(cluster)...)
	}
	return metrics.Divide(parts...)
}
