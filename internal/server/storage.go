package server

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/storage"
)

// newStorage makes what of local storage is done once per cluster: it runs where
// the controllers run.
func newStorage(api *controlplane.APIServer, leader *election.Election) component.Component {
	loops := storage.New(storage.Config{
		Client: func(ctx context.Context) *rest.Config {
			return api.ClientUntil(ctx, "system:kedge:storage-controller")
		},
		Informers: api.Informers,
	})
	return led("storage", leader, loops)
}
