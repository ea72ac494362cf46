package server

import (
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/controlplane/policycontrol"
)

// newPolicies makes the component that knows what NetworkPolicies mean for each node.
func (s *server) newPolicies() {
	if !s.roles.api || !s.cfg.Cluster.Has(config.NetworkPolicy) {
		return
	}
	settings := policycontrol.Config{
		Client: s.as("system:kedge:network-policy"), Informers: s.api.Informers, ServiceCIDRs: s.cfg.Cluster.ServiceCIDRs(),
		Gateway: s.cfg.Cluster.Has(config.Gateway) && len(s.cfg.Cluster.OwnPodCIDRs()) > 0,
	}
	if s.cfg.Cluster.Has(config.CoreDNS) {
		settings.DNS = s.cfg.Cluster.DNSAddresses()
	}
	s.policies = policycontrol.New(settings)
	s.told.Policies = s.policies.Watch
}

// policyCompiler returns the component that newPolicies made.
func (s *server) policyCompiler() component.Component {
	if s.policies == nil {
		return nil
	}
	return s.local.With(s.policies)
}
