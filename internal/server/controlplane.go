package server

import (
	"context"
	"net/netip"

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
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/scheduler"
	"github.com/kedge-dev/kedge/internal/controlplane/scrapetargets"
	"github.com/kedge-dev/kedge/internal/controlplane/storage"
	"github.com/kedge-dev/kedge/internal/inspect/lastresort"
	"github.com/kedge-dev/kedge/internal/node/announce"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/dns"
)

// objects makes the objects that every cluster begins with.
func (s *server) objects() component.Component {
	if !s.roles.api {
		return nil
	}
	return addons.New(addons.Config{
		Client:         s.api.ClientConfig("system:kedge:bootstrap", "system:masters"),
		Cluster:        s.cfg.Cluster,
		RuntimeClasses: containerd.RuntimeClasses(),
	})
}

// identity names this server among others. The name is for people. The address makes it unique,
// because no two servers share one.
func (s *server) identity() string {
	return s.node.Name + "_" + s.cfg.Server.PublicAddress(s.node.IPs[0])
}

// newLeader returns the election of the server that runs controllers and scheduler.
func (s *server) newLeader() *election.Election {
	if !s.roles.elects() {
		return nil
	}
	return election.New(election.Config{Client: s.api.ClientConfig("system:kedge:election"), Identity: s.identity(), OnLeader: s.noteLeader})
}

// encryptionKeeper changes keys, and how objects are stored.
func (s *server) encryptionKeeper() component.Component {
	if s.leader == nil && s.roles.objects.Shared() {
		return nil
	}
	return s.led("encryption-keeper", encryption.NewKeeper(s.api.keys, s.api.server.RequestTimeout))
}

// newControllers returns Kubernetes's controllers.
func (s *server) newControllers() component.Component {
	if !s.roles.controllers {
		return nil
	}
	manager, fault := controllers.New(controllers.Config{
		API:      s.api.server,
		Cluster:  s.cfg.Cluster,
		Files:    s.certificates.Files,
		Address:  s.node.IPs[0],
		Paths:    s.metrics.Paths(metrics.Controllers),
		Election: s.leader,
		Args:     s.cfg.Server.KubeControllerManagerArgs,

		VolumePlugins: s.volumePlugins(),
	})
	s.faults = append(s.faults, fault)
	return manager
}

// scheduler chooses nodes for pods.
func (s *server) scheduler() component.Component {
	if !s.roles.scheduler {
		return nil
	}
	pods, fault := scheduler.New(scheduler.Config{
		API:      s.api.server,
		CertFile: s.certificates.ServingCertFile,
		KeyFile:  s.certificates.ServingKeyFile,
		Address:  s.node.IPs[0],
		Paths:    s.metrics.Paths(metrics.Scheduler),
		Election: s.leader,
		Args:     s.cfg.Server.KubeSchedulerArgs,
	})
	s.faults = append(s.faults, fault)
	return pods
}

// scrapeTargets tells a Prometheus where the metrics of the servers are.
func (s *server) scrapeTargets() component.Component {
	return s.led("scrape-targets", scrapetargets.New(scrapetargets.Config{
		Client:    s.as("system:kedge:scrape-targets"),
		Informers: s.api.Informers,
		Ports:     metricsPorts(s.cfg.Server, s.node.IPs[0]),
	}))
}

// storage is the cluster's part in local storage.
func (s *server) storage() component.Component {
	if !s.cfg.Cluster.Has(config.LocalStorage) {
		return nil
	}
	return s.led("storage", storage.New(storage.Config{
		Client:    s.as("system:kedge:storage-controller"),
		Informers: s.api.Informers,
	}))
}

// loadBalancer gives addresses to Services of type LoadBalancer.
func (s *server) loadBalancer() component.Component {
	if !s.cfg.Cluster.Has(config.ServiceLB) {
		return nil
	}
	settings := loadbalancercontrol.Config{
		Client:    s.as("system:kedge:loadbalancer-controller"),
		Informers: s.api.Informers,
		Cluster:   s.cfg.Cluster,
		Owner:     s.registry.Owner,
		Answers:   s.tunnels.Answers,
	}
	if s.leader != nil {
		settings.Overdue = s.leader.Overdue
	}
	settings.VIP, _ = netip.ParseAddr(s.cfg.Server.VIP) // zero without one
	if s.roles.node {
		settings.Node = s.node.Name
	}
	return s.led("loadbalancer", loadbalancercontrol.New(settings))
}

// manifests applies the user's files.
func (s *server) manifests() component.Component {
	return s.led("manifests", manifests.New(manifests.Config{
		Path:    s.dir.Manifests(),
		Server:  s.node.Name,
		Disable: s.cfg.Cluster.DisabledManifests(),
		Client:  s.as("system:kedge:manifests"),
	}))
}

// helm installs HelmCharts.
func (s *server) helm() component.Component {
	if s.cfg.Cluster.DisableHelmController {
		return nil
	}
	return s.led("helm", helm.New(helm.Config{
		Charts: s.dir.Charts(),
		Server: s.node.Name,
		Client: s.as("system:kedge:helm"),
	}))
}

// lastResort writes on objects why they do not work, if nothing else says so.
func (s *server) lastResort() component.Component {
	return s.led("last-resort", lastresort.New(lastresort.Config{Client: s.as(lastresort.User), Unused: s.api.server.Unused}))
}

// dnsEndpoints tells the service proxy where the cluster's DNS listens.
func (s *server) dnsEndpoints() component.Component {
	if !s.cfg.Cluster.Has(config.CoreDNS) {
		return nil
	}
	return dns.NewEndpoints(dns.EndpointsConfig{
		Client:    s.api.ClientConfig("system:kedge:dns-endpoints"),
		Informers: s.api.Informers,
	})
}

// vip holds the address of the control plane on one of the servers.
func (s *server) vip() component.Component {
	if s.cfg.Server.VIP == "" {
		return nil
	}
	return announce.NewVIP(netip.MustParseAddr(s.cfg.Server.VIP), s.api.ClientConfig("system:kedge:vip"), s.identity())
}

// led makes a component of loops that run on one server at a time: the elected one, or the only
// one if there is no election.
func (s *server) led(name string, loops election.Loops) component.Component {
	return component.Func(name, func(ctx context.Context, ready func()) error {
		return s.leader.RunLoops(ctx, loops, ready)
	})
}

// as returns a function that gives the configuration with which a user calls the API
// during one term.
func (s *server) as(user string) func(context.Context) *rest.Config {
	return func(ctx context.Context) *rest.Config { return s.api.server.ClientUntil(ctx, user) }
}
