package server

import (
	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/controlplane/noderole"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

// roles are the parts that a server runs, and the place where it keeps its objects. The boot list
// asks only them whether a part belongs to this server:
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

func rolesOf(settings config.Server, objects choice.Kind) roles {
	api := !settings.DisableAPIServer
	return roles{
		api:         api,
		controllers: api && !settings.DisableControllerManager,
		scheduler:   api && !settings.DisableScheduler,
		node:        !settings.DisableAgent,
		objects:     objects,
	}
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
