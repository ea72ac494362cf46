package server

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/controlplane/addons/helm"
	"github.com/kedge-dev/kedge/internal/controlplane/addons/manifests"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
)

// newManifests makes what keeps the cluster in step with this server's files: it
// runs where the controllers run.
func newManifests(cfg *config.Config, node host.Node, api *controlplane.APIServer, leader *election.Election) component.Component {
	loops := manifests.New(manifests.Config{
		Path:    datadir.Dir(cfg.DataDir).Manifests(),
		Server:  node.Name,
		Disable: cfg.Cluster.DisabledManifests(),
		Client: func(ctx context.Context) *rest.Config {
			return api.ClientUntil(ctx, "system:kedge:manifests")
		},
	})
	return led("manifests", leader, loops)
}

// newHelm makes what looks after HelmCharts: it runs where the controllers run.
func newHelm(cfg *config.Config, node host.Node, api *controlplane.APIServer, leader *election.Election) component.Component {
	loops := helm.New(helm.Config{
		Charts: datadir.Dir(cfg.DataDir).Charts(),
		Server: node.Name,
		Client: func(ctx context.Context) *rest.Config {
			return api.ClientUntil(ctx, "system:kedge:helm")
		},
	})
	return led("helm", leader, loops)
}
