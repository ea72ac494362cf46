package agent

import (
	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/idle"
	"github.com/kedge-dev/kedge/internal/pki"
	"github.com/kedge-dev/kedge/internal/status"
)

// AddCommon adds what every kedge runs, with a node of its own or without, and
// what depends on nothing: it comes first.
// store is nil on an agent.
func AddCommon(group *component.Group, node host.Node, settings config.Node, cluster config.Cluster, clock *pki.Clock, store datastore.Datastore) error {
	memory, err := host.Memory()
	if err != nil {
		return err
	}
	group.Add(idle.New(memory))
	group.Add(clock.Recorder())
	group.Add(addressWatch(node, settings, cluster))
	group.Add(NewStatus(group, node, store))
	return nil
}

// NewStatus returns the component that answers `kedge status`. store may be nil.
func NewStatus(group *component.Group, node host.Node, store datastore.Datastore) component.Component {
	return status.New(status.Config{Socket: datadir.StatusSocket, Node: node.Name, Components: group.Status, Datastore: store})
}
