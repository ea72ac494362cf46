package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

// newPlans makes the component that knows which kedge the nodes are to run.
func (s *server) newPlans() {
	if !s.roles.api {
		return
	}
	s.plans = upgradecontrol.New(upgradecontrol.Config{
		Client: s.as(upgrades.ControllerUser),
		Store: store.New(store.Config{
			Folder:  s.dir.Upgrade(),
			TLS:     s.certificates.NodeTLS(),
			Servers: s.otherServers,
		}),
	})
	s.told.Orders = s.plans.Watch
}

// planController returns the controller of Plans, which s.plans knows.
func (s *server) planController() component.Component {
	settings := upgradecontrol.ControllerConfig{
		Client:    s.as(upgrades.ControllerUser),
		Informers: s.api.Informers,
		Plans:     s.plans,
		HTTP:      &http.Client{Transport: &http.Transport{TLSClientConfig: s.certificates.NodeTLS(), DisableKeepAlives: true}},
	}
	if s.roles.node {
		settings.Node = s.node.Name
	}
	return s.led("upgrade", upgradecontrol.NewController(settings))
}

// ownExecutable returns what gives this server's node an executable: from this server, or else
// from others.
func (s *server) ownExecutable() func(context.Context, string, func(io.Reader) error) error {
	source := executables.Source{TLS: s.certificates.NodeTLS(), Servers: s.otherServers}
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
func (s *server) otherServers() (addresses []string) {
	switch {
	case s.others != nil:
		addresses, _ = s.others.Servers()
	case s.api.remote != nil:
		addresses, _ = s.api.remote.Servers()
	}
	return addresses
}
