package server

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/controlplane/addons"
	"github.com/kedge-dev/kedge/internal/controlplane/addons/helm"
	"github.com/kedge-dev/kedge/internal/controlplane/addons/manifests"
	"github.com/kedge-dev/kedge/internal/controlplane/controllers"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancer"
	"github.com/kedge-dev/kedge/internal/controlplane/scheduler"
	"github.com/kedge-dev/kedge/internal/controlplane/scrapetargets"
	"github.com/kedge-dev/kedge/internal/controlplane/storage"
	"github.com/kedge-dev/kedge/internal/node/announce"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/dns"
)

// addControlPlane adds the parts that belong to the API server of this process. It
// returns the component that clients of the API wait for, the controllers, and all faults
// in the user's arguments. If there are faults, the caller does not run the group.
// registrations may be read once the manifests are applied.
func (s *server) addControlPlane(group *component.Group, api *api, registrations component.Component) (usable component.Component, loops []component.Component, faults error) {
	objects := addons.New(addons.Config{
		Client:         api.ClientConfig("system:kedge:bootstrap", "system:masters"),
		Cluster:        s.cfg.Cluster,
		RuntimeClasses: containerd.RuntimeClasses(),
	})
	group.Add(objects, api)
	group.Add(registrations, objects)
	before := []component.Component{api}
	var leader *election.Election
	if s.roles.elects() {
		leader = election.New(election.Config{
			Client: api.ClientConfig("system:kedge:election"),
			// The name is for people. The address makes it unique, because no two servers
			// share one.
			Identity: s.node.Name + "_" + s.cfg.Server.PublicAddress(s.node.IPs[0]),
		})
		group.Add(leader, objects) // which have the rights for the election
		before = append(before, leader)
	}
	if leader != nil || !s.roles.objects.Shared() {
		group.Add(led("encryption-keeper", leader, encryption.NewKeeper(api.keys, api.server.RequestTimeout)), before...)
	}
	if s.roles.controllers {
		manager, fault := controllers.New(controllers.Config{
			API:      api.server,
			Cluster:  s.cfg.Cluster,
			Files:    s.certificates.Files,
			Address:  s.node.IPs[0],
			Paths:    s.metrics.Paths(metrics.Controllers),
			Election: leader,
			Args:     s.cfg.Server.KubeControllerManagerArgs,

			VolumePlugins: s.volumePlugins(),
		})
		group.Add(manager, before...)
		loops, faults = append(loops, manager), errors.Join(faults, fault)
	}
	if s.roles.scheduler {
		pods, fault := scheduler.New(scheduler.Config{
			API:      api.server,
			CertFile: s.certificates.ServingCertFile,
			KeyFile:  s.certificates.ServingKeyFile,
			Address:  s.node.IPs[0],
			Paths:    s.metrics.Paths(metrics.Scheduler),
			Election: leader,
			Args:     s.cfg.Server.KubeSchedulerArgs,
		})
		group.Add(pods, before...)
		faults = errors.Join(faults, fault)
	}
	if s.gateway != nil {
		// The objects have the kinds of the Gateway API. Registrations say which addresses are nodes'.
		group.Add(s.gateway, objects, registrations)
	}
	group.Add(s.plans, objects)
	if s.roles.controllers {
		before = append(before, objects)
		group.Add(led("scrape-targets", leader, scrapetargets.New(scrapetargets.Config{
			Client:    as(api, "system:kedge:scrape-targets"),
			Informers: api.Informers,
			Ports:     metricsPorts(s.cfg, s.node.IPs[0]),
		})), before...)
		if s.cfg.Cluster.Has(config.LocalStorage) {
			group.Add(led("storage", leader, storage.New(storage.Config{
				Client:    as(api, "system:kedge:storage-controller"),
				Informers: api.Informers,
			})), before...)
		}
		if s.cfg.Cluster.Has(config.ServiceLB) {
			balancer := loadbalancer.Config{
				Client:    as(api, "system:kedge:loadbalancer-controller"),
				Informers: api.Informers,
				Cluster:   s.cfg.Cluster,
				Owner:     s.registry.Owner,
				Answers:   s.tunnels.Answers,
			}
			if leader != nil {
				balancer.Overdue = leader.Overdue
			}
			balancer.VIP, _ = netip.ParseAddr(s.cfg.Server.VIP) // zero without one
			if s.roles.node {
				balancer.Node = s.node.Name
			}
			s.balance(group, led("loadbalancer", leader, loadbalancer.New(balancer)), before...)
		}
		if s.gateway != nil {
			s.balance(group, led("gateway", leader, s.gatewayController(api)), slices.Concat(before, []component.Component{s.gateway})...)
		}
		group.Add(led("upgrade", leader, s.planController(api)), append(slices.Clone(before), s.plans)...)
		group.Add(led("manifests", leader, manifests.New(manifests.Config{
			Path:    s.dir.Manifests(),
			Server:  s.node.Name,
			Disable: s.cfg.Cluster.DisabledManifests(),
			Client:  as(api, "system:kedge:manifests"),
		})), before...)
		if !s.cfg.Cluster.DisableHelmController {
			group.Add(led("helm", leader, helm.New(helm.Config{
				Charts: s.dir.Charts(),
				Server: s.node.Name,
				Client: as(api, "system:kedge:helm"),
			})), before...)
		}
	}
	if s.cfg.Cluster.Has(config.CoreDNS) {
		group.Add(dns.NewEndpoints(dns.EndpointsConfig{
			Client:    api.ClientConfig("system:kedge:dns-endpoints"),
			Informers: api.Informers,
		}), objects)
	}
	if vip := s.cfg.Server.VIP; vip != "" {
		// The identity is unique, because no two servers share an address.
		identity := s.node.Name + "_" + s.cfg.Server.PublicAddress(s.node.IPs[0])
		group.Add(announce.NewVIP(netip.MustParseAddr(vip), api.ClientConfig("system:kedge:vip"), identity), objects)
	}
	return objects, loops, faults
}

// balance adds a component that sends clients to nodes.
func (s *server) balance(group *component.Group, balancing component.Component, before ...component.Component) {
	group.Add(balancing, before...)
	s.balancing = append(s.balancing, balancing)
}

// led makes a component of loops that run on one server at a time: the elected one, or
// the only one if leader is nil.
func led(name string, leader *election.Election, loops election.Loops) component.Component {
	return component.Func(name, func(ctx context.Context, ready func()) error {
		return leader.RunLoops(ctx, loops, ready)
	})
}

// as returns a function that gives the configuration with which a user calls the API
// during one term.
func as(api *api, user string) func(context.Context) *rest.Config {
	return func(ctx context.Context) *rest.Config { return api.server.ClientUntil(ctx, user) }
}
