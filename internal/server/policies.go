package server

import (
	"context"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/policy"
)

// newPolicies returns the component that knows what NetworkPolicies mean for each node.
// It is nil if this server runs no API server, or if the cluster has disabled them.
func (s *server) newPolicies(api *api) *policy.Compiler {
	if !s.roles.api || !s.cfg.Cluster.Has(config.NetworkPolicy) {
		return nil
	}
	settings := policy.Config{
		Client: as(api, "system:kedge:network-policy"), Informers: api.Informers, ServiceCIDRs: s.cfg.Cluster.ServiceCIDRs(),
		Gateway: s.cfg.Cluster.Has(config.Gateway) && len(s.cfg.Cluster.OwnPodCIDRs()) > 0,
	}
	if s.cfg.Cluster.Has(config.CoreDNS) {
		settings.DNS = s.cfg.Cluster.DNSAddresses()
	}
	return policy.New(settings)
}

// nodePolicies returns what tells other nodes what their pods are held to, or nil.
func (s *server) nodePolicies() func(context.Context, string, func(netpolicy.Update) error) error {
	if s.policies == nil {
		return nil
	}
	return s.policies.Watch
}

// ownPolicies returns what tells this server's node what its pods are held to, or nil: the
// compiler in this process, or else another server.
func (s *server) ownPolicies(api *api) func(context.Context, func(netpolicy.Update) error) error {
	if !s.cfg.Cluster.Has(config.NetworkPolicy) {
		return nil
	}
	stream := nodestream.Policies().From(api.ClientConfig(pki.NodeUser(s.node.Name), pki.NodesGroup, pki.NodeGroup(s.node.Name)))
	if s.policies != nil {
		stream = func(ctx context.Context, apply func(netpolicy.Update) error) error {
			return s.policies.Watch(ctx, s.node.Name, apply)
		}
	}
	return nodestream.Policies().Keep(stream)
}
