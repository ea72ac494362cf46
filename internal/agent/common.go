package agent

import (
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/lowpower"
)

// AddCommon adds the components that every kedge runs, even without a node. They depend
// on nothing, so they come first. status is the component that answers `kedge status`.
func AddCommon(group *component.Group, node host.Node, settings config.Node, cluster config.Cluster, clock *pki.Clock, status component.Component) error {
	memory, err := host.Memory()
	if err != nil {
		return err
	}
	group.Add(lowpower.New(memory))
	group.Add(clock.Recorder())
	group.Add(host.WatchAddress(node, settings, cluster))
	group.Add(status)
	return nil
}
