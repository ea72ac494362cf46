package server

import (
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/acme"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/endpoints"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/front"
)

// newGateway makes the component that knows what Gateways and Ingresses mean for each node.
func (s *server) newGateway() {
	if !s.roles.api || !s.cfg.Cluster.Has(config.Gateway) {
		return
	}
	settings := &s.cfg.Cluster.Gateway
	s.gateway = gatewaycontrol.New(gatewaycontrol.Config{
		Client:         s.as(gateways.ControllerUser),
		Informers:      s.api.Informers,
		Pools:          s.cfg.Cluster.Has(config.ServiceLB),
		Sockets:        front.Options{ProxyProtocol: settings.ProxyProtocol, Trusted: settings.TrustedPrefixes(), AccessLog: settings.AccessLog},
		Backends:       s.backendRules(),
		IngressClasses: settings.IngressClasses,
		Ports:          settings.SharedPorts(),
		ShareHosts:     settings.ShareHosts,
		Metrics:        s.metrics.Registerer(metrics.APIServer),
	})
	s.told.Routes = s.gateway.Watch
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
func (s *server) gatewayController() component.Component {
	if s.gateway == nil {
		return nil
	}
	return s.led("gateway", gatewaycontrol.NewController(gatewaycontrol.ControllerConfig{
		Client:    s.as(gateways.ControllerUser),
		Informers: s.api.Informers,
		Compiler:  s.gateway,
		Owner:     s.registry.Owner,
		ACME: acme.Config{
			Directory: s.cfg.Cluster.Gateway.ACMEServer,
			Refused:   slices.Concat(s.cfg.Cluster.PodCIDRs(), s.cfg.Cluster.ServiceCIDRs()),
		},
	}))
}
