package server

import (
	"context"
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway/front"
)

// newGateway returns the component that knows what Gateways and Ingresses mean for each node.
// It is nil if this server runs no API server, or if the cluster has the gateway disabled.
func (s *server) newGateway(api *api) *gateway.Compiler {
	if !s.roles.api || !s.cfg.Cluster.Has(config.Gateway) {
		return nil
	}
	settings := &s.cfg.Cluster.Gateway
	return gateway.New(gateway.Config{
		Client:         as(api, gateways.ControllerUser),
		Informers:      api.Informers,
		Pools:          s.cfg.Cluster.Has(config.ServiceLB),
		Sockets:        front.Options{ProxyProtocol: settings.ProxyProtocol, Trusted: settings.TrustedPrefixes(), AccessLog: settings.AccessLog},
		Backends:       s.backendRules(),
		IngressClasses: settings.IngressClasses,
		Ports:          settings.SharedPorts(),
		ShareHosts:     settings.ShareHosts,
		Metrics:        s.metrics.Registerer(metrics.APIServer),
	})
}

// backendRules returns which addresses the gateway may connect to.
func (s *server) backendRules() endpoints.Rules {
	cluster := &s.cfg.Cluster
	rules := endpoints.Rules{
		OwnPods: len(cluster.OwnPodCIDRs()) > 0, PodRanges: cluster.PodCIDRs(), Services: cluster.ServiceCIDRs(),
		Allowed: cluster.Gateway.BackendPrefixes(), Owner: s.registry.Owner,
	}
	rules.VIP, _ = netip.ParseAddr(s.cfg.Server.VIP) // zero without one
	return rules
}

// gatewayController returns the controller of Gateways and Ingresses. Its Compiler is s.gateway.
func (s *server) gatewayController(api *api) *gateway.Controller {
	return gateway.NewController(gateway.ControllerConfig{
		Client:    as(api, gateways.ControllerUser),
		Informers: api.Informers,
		Compiler:  s.gateway,
		Owner:     s.registry.Owner,
		ACME: acme.Config{
			Directory: s.cfg.Cluster.Gateway.ACMEServer,
			Refused:   slices.Concat(s.cfg.Cluster.PodCIDRs(), s.cfg.Cluster.ServiceCIDRs()),
		},
	})
}

// nodeRoutes returns what tells other nodes what their gateways serve, or nil.
func (s *server) nodeRoutes() func(context.Context, string, func(routing.Update) error) error {
	if s.gateway == nil {
		return nil
	}
	return s.gateway.Watch
}

// ownRoutes returns what tells this server's node what its gateway serves, or nil: the
// compiler in this process, or else another server.
func (s *server) ownRoutes(api *api) func(context.Context, func(routing.Update) error) error {
	if !s.cfg.Cluster.Has(config.Gateway) {
		return nil
	}
	stream := nodestream.Routes().From(api.ClientConfig(pki.NodeUser(s.node.Name), pki.NodesGroup, pki.NodeGroup(s.node.Name)))
	if s.gateway != nil {
		stream = func(ctx context.Context, apply func(routing.Update) error) error {
			return s.gateway.Watch(ctx, s.node.Name, apply)
		}
	}
	return nodestream.Routes().Keep(stream)
}
