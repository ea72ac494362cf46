package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/controlplane/upgrade"
	"github.com/kedge-dev/kedge/internal/controlplane/upgrade/store"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// newOthers returns the component that knows the other servers with an API server. It is nil if
// this server runs none, or if there can be no others.
func (s *server) newOthers(api *api) *servers.Others {
	if !s.roles.api || !s.roles.objects.Shared() {
		return nil
	}
	return servers.New(api.Informers, s.cfg.Server.Advertised(s.node.IPs[0]))
}

// peers returns what knows the other servers with an API server, or nil.
func (s *server) peers() proxy.Servers {
	if s.others == nil {
		return nil
	}
	return s.others
}

// newPlans returns the component that knows which kedge the nodes are to run. It is nil if this
// server runs no API server.
func (s *server) newPlans(api *api) *upgrade.Plans {
	if !s.roles.api {
		return nil
	}
	return upgrade.New(upgrade.Config{
		Client: as(api, upgrades.ControllerUser),
		Store: store.New(store.Config{
			Folder:  s.dir.Upgrade(),
			TLS:     s.certificates.NodeTLS(),
			Servers: func() []string { return s.otherServers(api) },
		}),
	})
}

// planController returns the controller of Plans, which s.plans knows.
func (s *server) planController(api *api) *upgrade.Controller {
	settings := upgrade.ControllerConfig{
		Client:    as(api, upgrades.ControllerUser),
		Informers: api.Informers,
		Plans:     s.plans,
		HTTP:      &http.Client{Transport: &http.Transport{TLSClientConfig: s.certificates.NodeTLS(), DisableKeepAlives: true}},
	}
	if s.roles.node {
		settings.Node = s.node.Name
	}
	return upgrade.NewController(settings)
}

// nodeOrders returns what tells other nodes what they are to run, or nil.
func (s *server) nodeOrders() func(context.Context, string, func(upgrades.Order) error) error {
	if s.plans == nil {
		return nil
	}
	return s.plans.Watch
}

// ownOrders returns what tells this server's node what it is to run: this process, or another
// server.
func (s *server) ownOrders(api *api) func(context.Context, func(upgrades.Order) error) error {
	stream := nodestream.Orders().From(api.ClientConfig(pki.NodeUser(s.node.Name), pki.NodesGroup, pki.NodeGroup(s.node.Name)))
	if s.plans != nil {
		stream = func(ctx context.Context, apply func(upgrades.Order) error) error {
			return s.plans.Watch(ctx, s.node.Name, apply)
		}
	}
	return nodestream.Orders().Keep(stream)
}

// ownExecutable returns what gives this server's node an executable: from this server, or else
// from others.
func (s *server) ownExecutable(api *api) func(context.Context, string, func(io.Reader) error) error {
	source := executables.Source{TLS: s.certificates.NodeTLS(), Servers: func() []string { return s.otherServers(api) }}
	return func(ctx context.Context, digest string, take func(io.Reader) error) error {
		if s.plans != nil {
			file, err := s.plans.Executable(digest)
			if err == nil {
				defer file.Close()
				return take(file)
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("open executable: %w", err)
			}
		}
		return source.Get(ctx, digest, take)
	}
}

// otherServers returns the addresses of the other servers with an API server.
func (s *server) otherServers(api *api) (addresses []string) {
	switch {
	case s.others != nil:
		addresses, _ = s.others.Servers()
	case api.remote != nil:
		addresses, _ = api.remote.Servers()
	}
	return addresses
}

// executable returns what opens the executables that this server has, or nil.
func (s *server) executable() func(digest string) (*os.File, error) {
	if s.plans == nil {
		return nil
	}
	return s.plans.Executable
}
