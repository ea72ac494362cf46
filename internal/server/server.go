// Package server is a kedge server: the list of its components in boot order. Read this
// package first.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/cluster/supervisor"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/gateway"
	"github.com/kedge-dev/kedge/internal/controlplane/noderole"
	"github.com/kedge-dev/kedge/internal/controlplane/policy"
	"github.com/kedge-dev/kedge/internal/controlplane/upgrade"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

// stopTimeout is how long a server may take to stop. Pods keep running.
const stopTimeout = 30 * time.Second

// Observer has the functions that Run calls to report progress.
type Observer struct {
	// OnChange is called whenever a component's state changes.
	OnChange func(component.Status)
	// OnFault is called when a component reports another fault than before, or none any more.
	OnFault func(component.Status)
	// OnSlowStop is called with the components that a slow stop waits for.
	OnSlowStop func(names []string)
	// OnReady is called once, when the node is ready.
	OnReady func(Summary)
}

// Summary is what a user needs to know about a server.
type Summary struct {
	// URL is the API's URL for other hosts.
	URL string
	// Kubeconfig is the path of the administrator's kubeconfig, empty without an API
	// server.
	Kubeconfig string
}

// Run runs a server. It returns nil when ctx is cancelled, or the error of the first
// component that fails. After host.ErrMoved and join.ErrAuthorities the caller must run
// the server again in a new process. Run checks first what a user can mend, before it
// changes anything.
func Run(ctx context.Context, cfg *config.Config, process *agent.Process, local *localapi.Server, observer Observer) (err error) {
	dir := datadir.Dir(cfg.DataDir)
	ctx, fault := process.Phase.Watch(ctx)
	defer func() { err = cmp.Or(err, fault()) }()
	node, err := ResolveNode(cfg)
	if err != nil {
		return err
	}
	clusterRanges := slices.Concat(cfg.Cluster.PodCIDRs(), cfg.Cluster.ServiceCIDRs())
	if err := agent.UseNoProxy(clusterRanges, cfg.Cluster.ClusterDomain, node.IPs); err != nil {
		return err
	}
	release, err := dir.Take()
	if err != nil {
		return errors.Join(err, CheckArguments(cfg))
	}
	defer release()
	if err := check(ctx, cfg, node); err != nil {
		return err
	}
	if err := choice.Resume(ctx, cfg, dir); err != nil {
		return err
	}
	if err := pki.TakeAuthorities(dir, time.Now()); err != nil {
		return err
	}
	listener, err := supervisor.Listen(cfg.Server.BindAddress, cfg.Server.HTTPSListenPort)
	if err != nil {
		return err
	}
	defer listener.Close()
	clock := pki.NewClock(dir.ClockFile())
	clock.Settle(ctx)
	roles := rolesOf(cfg, dir)
	if roles.node {
		agent.WarnRenamed(dir, node.Name)
	}
	certificates, summary, joined, err := identify(ctx, cfg, roles, dir, node, clock, local)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if cfg.Server.ClusterReset {
		return choice.Reset(ctx, cfg, dir, node, certificates)
	}

	group := component.Group{
		StopTimeout: stopTimeout,
		OnChange:    observer.OnChange,
		OnFault:     observer.OnFault,
		OnStop:      process.Phase.Stopping,
		OnSlowStop:  observer.OnSlowStop,
		OnReady: func() {
			process.Phase.Ready()
			observer.OnReady(*summary)
		},
	}
	store, err := choice.New(ctx, roles.objects, cfg, dir, node, certificates, joined, process.Trial.Running())
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	s := &server{
		cfg: cfg, process: process, roles: roles, dir: dir, node: node, clock: clock, certificates: certificates, store: store,
		local: local, registry: registration.New(), tunnels: tunnel.NewServer(), metrics: roles.metrics(cfg.Cluster),
	}
	if err := s.addTo(&group, listener); err != nil {
		return err
	}
	return group.Run(ctx)
}

// server has what the parts of a server are made from.
type server struct {
	cfg          *config.Config
	process      *agent.Process
	roles        roles
	dir          datadir.Dir
	node         host.Node
	clock        *pki.Clock
	certificates *pki.Server
	store        *choice.Store
	local        *localapi.Server
	registry     *registration.Registry
	tunnels      *tunnel.Server
	metrics      *metrics.Division
	// policies is nil if this server runs no API server, or the cluster has NetworkPolicies
	// disabled.
	policies *policy.Compiler
	// gateway is nil if this server runs no API server, or the cluster has the gateway disabled.
	gateway *gateway.Compiler
	// plans is nil if this server runs no API server. others is nil, too, if no other server can
	// run one.
	plans  *upgrade.Plans
	others *servers.Others
	// balancing are the components that send clients to nodes.
	balancing []component.Component
}

// addTo adds everything that a server runs to group. The order of the calls is the boot
// order.
func (s *server) addTo(group *component.Group, listener net.Listener) error {
	cfg := s.cfg
	api, apiFault := s.newAPI(listener)
	s.policies, s.gateway = s.newPolicies(api), s.newGateway(api)
	s.plans, s.others = s.newPlans(api), s.newOthers(api)
	driver := s.newDriver()
	if err := agent.AddCommon(group, s.node, cfg.Node, cfg.Cluster, s.clock, s.local.With(s.newStatus(group, api, driver))); err != nil {
		return err
	}
	group.Add(s.local.With(s.newKeeper()))
	if err := s.store.Add(group, s.metrics.Registerer(metrics.APIServer)); err != nil {
		return err
	}

	// The port is served before the API server runs, with 503 until the API server is
	// ready.
	gate := supervisor.New(supervisor.Config{
		Listener:    listener,
		Certificate: servingCertificate(api, s.certificates),
		PKI:         s.certificates,
		Registry:    s.registry,
		Dir:         s.dir,
		Settings:    join.Settings{Version: version.Version, Cluster: cfg.Cluster},
		Client:      api.ClientConfig("system:kedge:supervisor"),
		Tunnel:      s.tunnels.Serve,
		Etcd:        s.store.Etcd,
		Token:       s.store.Token,
		Policies:    s.nodePolicies(),
		Routes:      s.nodeRoutes(),
		Orders:      s.nodeOrders(),
		Executable:  s.executable(),
		APIServers:  api.others,
		API:         api,
		Now:         s.clock.Now,
	})
	group.Add(gate)
	beforeAPI := []component.Component{s.store, gate}
	if s.roles.objects.Shared() {
		beforeAPI = append(beforeAPI, s.store.Authorities)
	}
	if s.roles.api {
		keys, settings := s.local.With(api.keys), join.NewFixedSettings(s.store.Connect, cfg.Cluster)
		group.Add(keys, s.store)
		group.Add(settings, s.store)
		beforeAPI = append(beforeAPI, keys, settings)
	}
	group.Add(api, beforeAPI...)
	if s.others != nil {
		group.Add(s.others, api)
	}

	nodesClient, err := kubernetes.NewForConfig(api.ClientConfig("system:kedge:supervisor"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	registrations := s.registry.Follow(nodesClient, api.Informers)
	// Clients of the API wait for this. If the server runs an API server, that is after
	// it has made the objects that every cluster begins with.
	usable, controllers, faults := component.Component(api), []component.Component(nil), apiFault
	if s.roles.api {
		var fault error
		usable, controllers, fault = s.addControlPlane(group, api, registrations)
		faults = errors.Join(faults, fault)
	} else {
		group.Add(registrations, api)
	}
	if s.policies != nil {
		group.Add(s.local.With(s.policies), api)
	}
	saving := choice.Snapshots(cfg, s.store.Saved)
	saving.NodeName, saving.Client, saving.Now = s.node.Name, api.ClientConfig("system:kedge:snapshots"), s.clock.Now
	group.Add(s.local.With(snapshot.New(saving)), s.store, usable)
	if s.roles.objects == choice.Member {
		group.Add(etcd.NewMembers(s.store.Member, api.Informers), api)
	}
	if !s.roles.node {
		return faults
	}

	password, err := join.EnsurePassword(datadir.NodePassword, datadir.K3sNodePassword)
	if err != nil {
		return err
	}
	claim := registration.NewServerNode(nodesClient, registration.Claim{
		Node: s.node.Name, Addresses: s.node.IPs, Password: password,
		// Truncated to the day, because the node's certificates are made at each start
		// and a restart should not write anything.
		CertificatesEnd: s.certificates.NodeEnd().Truncate(24 * time.Hour),
	})
	group.Add(claim, usable)
	added, nodeFault := agent.AddTo(group, agent.Config{
		Process:         s.process,
		Dir:             s.dir,
		Node:            s.node,
		Settings:        cfg.Node,
		Cluster:         cfg.Cluster,
		Clients:         api,
		Reconnect:       api.reconnect,
		Servers:         s.peers(),
		Informers:       api.Informers,
		Driver:          driver,
		Policies:        s.ownPolicies(api),
		Routes:          s.ownRoutes(api),
		Orders:          s.ownOrders(api),
		Executable:      s.ownExecutable(api),
		ServingCertFile: s.certificates.KubeletServingCertFile,
		ServingKeyFile:  s.certificates.KubeletServingKeyFile,
		ClientCAFile:    s.certificates.ClientCAFile,
		TLS:             s.certificates.NodeTLS(),
		Metrics:         s.metrics,
		Balancing:       s.balancing,

		ServerCertificate: s.certificates.ServingCertificate,
		ServerPorts:       Ports(cfg, s.node),
	}, claim, controllers...)
	if err := errors.Join(faults, nodeFault); err != nil {
		return err
	}
	if s.roles.objects.Shared() || !s.roles.api {
		s.addTunnels(group, api, added.KubeletPort)
	}
	group.Add(noderole.New(api.ClientConfig("system:kedge:node-role"), s.node.Name, s.roles.labels()), added.Ready)
	return nil
}
