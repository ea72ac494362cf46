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
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	relay "github.com/kedge-dev/kedge/internal/cluster/mesh"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/cluster/supervisor"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/noderole"
	"github.com/kedge-dev/kedge/internal/controlplane/policycontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/mesh"
	"github.com/kedge-dev/kedge/internal/node/recorder"
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
	ctx, fault := process.Phase.Watch(ctx)
	defer func() { err = cmp.Or(err, fault()) }()
	r, err := Resolve(cfg)
	if err != nil {
		return err
	}
	dir, node := r.dir, r.node
	clusterRanges := slices.Concat(cfg.Cluster.PodCIDRs(), cfg.Cluster.ServiceCIDRs())
	if err := agent.UseNoProxy(clusterRanges, cfg.Cluster.ClusterDomain, node.IPs); err != nil {
		return err
	}
	release, err := dir.Take()
	if err != nil {
		return errors.Join(err, r.CheckArguments())
	}
	defer release()
	if err := r.check(ctx); err != nil {
		return err
	}
	if err := r.choice.Resume(ctx, node); err != nil {
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
	if r.roles.node {
		agent.WarnRenamed(dir, node.Name)
	}
	certificates, summary, joined, err := r.identify(ctx, clock, local)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if cfg.Server.ClusterReset {
		return r.choice.Reset(ctx, node, certificates)
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
	store, err := r.choice.New(ctx, node, certificates, joined, process.Trial.Running())
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	s := &server{
		Resolved: r, process: process, clock: clock, certificates: certificates, store: store,
		local: local, registry: registration.New(), metrics: r.roles.metrics(cfg.Cluster),
	}
	if err := s.addTo(&group, listener); err != nil {
		return err
	}
	return group.Run(ctx)
}

// addTo adds everything that a server runs to group. The order of the calls is the boot
// order.
func (s *server) addTo(group *component.Group, listener net.Listener) error {
	s.prepare(listener)
	if err := agent.AddCommon(group, s.node, s.cfg.Node, s.cfg.Cluster, s.clock, s.recorder, s.local.With(s.newStatus(group))); err != nil {
		return err
	}
	group.Add(s.local.With(s.newKeeper()))
	if err := s.store.Add(group, s.metrics.Registerer(metrics.APIServer)); err != nil {
		return err
	}
	port := group.Add(s.supervisor(listener))
	keys := group.Add(s.keys(), s.store)
	settings := group.Add(s.fixedSettings(), s.store)
	group.Add(s.api, s.store, port, s.authorities(), keys, settings)
	servers := cmp.Or(group.Add(s.others, s.api), component.Component(s.api))
	objects := group.Add(s.objects(), s.api)
	// Clients of the API wait for this. If the server runs an API server, that is after it has
	// made the objects that every cluster begins with.
	usable := cmp.Or(objects, component.Component(s.api))
	registrations := group.Add(s.registry.Follow(s.nodesClient, s.api.Informers), usable)
	if s.roles.api {
		s.addControlPlane(group, objects, registrations)
	}
	group.Add(s.policyCompiler(), s.api)
	group.Add(s.snapshots(), s.store, usable)
	group.Add(s.members(), s.api)
	group.Add(s.meshRelay())
	if s.roles.node {
		s.addNode(group, usable, servers)
	}
	return errors.Join(s.faults...)
}

// addControlPlane adds the parts that belong to the API server of this process. Registrations
// may be read once the objects that every cluster begins with are made. Most parts run on one
// server at a time.
func (s *server) addControlPlane(group *component.Group, objects, registrations component.Component) {
	s.leader = s.newLeader()
	leader := group.Add(s.leader, objects) // which have the rights for the election
	group.Add(s.encryptionKeeper(), s.api, leader)
	s.controllers = group.Add(s.newControllers(), s.api, leader)
	group.Add(s.scheduler(), s.api, leader)
	// The objects have the kinds of the Gateway API. Registrations say which addresses are nodes'.
	routes := group.Add(s.gateway, objects, registrations)
	group.Add(s.plans, objects)
	if s.roles.controllers {
		group.Add(s.scrapeTargets(), s.api, leader, objects)
		group.Add(s.storage(), s.api, leader, objects)
		balancer := group.Add(s.loadBalancer(), s.api, leader, objects)
		gateways := group.Add(s.gatewayController(), s.api, leader, objects, routes)
		s.told.Balancing = []component.Component{balancer, gateways}
		group.Add(s.planController(), s.api, leader, objects, s.plans)
		group.Add(s.manifests(), s.api, leader, objects)
		if s.backup != nil {
			group.Add(s.local.With(s.backup), s.api, leader, objects)
			group.Add(s.volumeBackups, s.api, leader, objects)
		}
		group.Add(s.helm(), s.api, leader, objects)
		group.Add(s.lastResort(), s.api, leader, objects)
	}
	group.Add(s.moments(), objects)
	group.Add(s.dnsEndpoints(), objects)
	group.Add(s.vip(), objects)
}

// addNode adds the node of this server. The node's components wait until this server has claimed
// the node's name. servers knows the API servers on other servers.
func (s *server) addNode(group *component.Group, usable, servers component.Component) {
	claim, fault := s.claim()
	if fault != nil {
		s.faults = append(s.faults, fault)
		return
	}
	group.Add(claim, usable)
	added, fault := agent.AddTo(group, s.nodeConfig(), claim, s.controllers)
	if fault != nil {
		s.faults = append(s.faults, fault)
		return
	}
	group.Add(s.tunnel(added.KubeletPort), servers)
	group.Add(noderole.New(s.api.ClientConfig("system:kedge:node-role"), s.node.Name, s.roles.labels()), added.Ready)
}

// server has what the parts of a server are made from.
type server struct {
	Resolved
	process      *agent.Process
	clock        *pki.Clock
	certificates *pki.Server
	store        *choice.Store
	local        *localapi.Server
	registry     *registration.Registry
	tunnels      *tunnel.Server
	// relay and mesh are nil if the pods' network is not the mesh. mesh is nil, too, if this server has no node.
	relay   *relay.Relay
	mesh    *mesh.Mesh
	metrics *metrics.Division

	recorder *recorder.Recorder

	api    *api
	driver *csi.Driver
	// nodesClient is for the registrations of nodes.
	nodesClient *kubernetes.Clientset
	// policies and gateway are nil if this server runs no API server, or the cluster has
	// NetworkPolicies, or the gateway, disabled. plans is nil if this server runs no API server.
	// others is nil, too, if no other server can run one.
	policies *policycontrol.Compiler
	gateway  *gatewaycontrol.Compiler
	plans    *upgradecontrol.Plans
	others   *servers.Others
	// backup is nil without a place for it, or without an API server. volumeBackups is nil, too, if the cluster has no volumes of kedge's.
	backup        *backup.Backup
	volumeBackups *volumebackups.VolumeBackups
	// told is what this server tells nodes, and gives to its own node.
	told agent.Server
	// leader is nil if this server cannot be elected.
	leader *election.Election
	// controllers is nil if this server runs none.
	controllers component.Component
	// faults are those in the user's settings. If there are any, nothing runs.
	faults []error
}

// prepare makes the parts that others refer to.
func (s *server) prepare(listener net.Listener) {
	s.newTunnels()
	s.newAPI(listener)
	var fault error
	if s.nodesClient, fault = kubernetes.NewForConfig(s.api.ClientConfig("system:kedge:supervisor")); fault != nil {
		s.faults = append(s.faults, fmt.Errorf("make client: %w", fault))
	}
	s.recorder = agent.NewRecorder(s.dir, s.curves()...)
	s.newPolicies()
	s.newGateway()
	s.newPlans()
	if s.roles.api {
		s.backup = s.newBackup()
		s.volumeBackups = s.newVolumeBackups()
	}
	if s.roles.api && s.roles.objects.Shared() {
		s.others = servers.New(s.api.Informers, s.cfg.Server.Advertised(s.node.IPs[0]))
	}
	if s.roles.node {
		s.driver = agent.NewDriver(s.dir, s.node.Name, s.cfg.Node, s.cfg.Cluster)
		s.told.Certificate, s.told.Ports = s.certificates.ServingCertificate, s.Ports()
	}
}
