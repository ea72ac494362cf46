package agent

import (
	"os"

	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/idle"
	"github.com/kedge-dev/kedge/internal/pki"
	"github.com/kedge-dev/kedge/internal/status"
	"github.com/kedge-dev/kedge/internal/version"
)

// AddCommon adds what every kedge runs, with a node of its own or without, and
// what depends on nothing: it comes first.
func AddCommon(group *component.Group, node host.Node, settings config.Node, cluster config.Cluster, clock *pki.Clock) error {
	memory, err := host.Memory()
	if err != nil {
		return err
	}
	group.Add(idle.New(memory))
	group.Add(clock.Recorder())
	group.Add(addressWatch(node, settings, cluster))
	group.Add(status.New(datadir.StatusSocket, func() status.Report {
		return status.Report{PID: os.Getpid(), Version: version.Version, Node: node.Name, Components: group.Status()}
	}))
	return nil
}
