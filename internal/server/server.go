// Package server is a kedge server: THE list of its components in boot order.
// Read this first.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/addons"
	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/containerd"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/dns"
	"github.com/kedge-dev/kedge/internal/encryption"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/kubeinit"
	"github.com/kedge-dev/kedge/internal/pki"
	"github.com/kedge-dev/kedge/internal/registration"
	"github.com/kedge-dev/kedge/internal/snapshot"
	"github.com/kedge-dev/kedge/internal/supervisor"
	"github.com/kedge-dev/kedge/internal/tunnel"
	"github.com/kedge-dev/kedge/internal/version"
)

// stopTimeout is how long a server may take to stop. Pods run on.
const stopTimeout = 30 * time.Second

// Observer is told how a server fares.
type Observer struct {
	// OnChange is called at each change of a component's state.
	OnChange func(component.Status)
	// OnSlowStop is called with the components that a slow stop waits for.
	OnSlowStop func(names []string)
	// OnReady is called once, when the node is ready.
	OnReady func(Summary)
}

// Summary is what a user needs to know of a server.
type Summary struct {
	// URL is the API's, for other hosts.
	URL string
	// Kubeconfig is the path of the administrator's, empty without an API server.
	Kubeconfig string
}

// Run runs a server until ctx is cancelled, and returns nil then, or until one
// of its components fails; with ErrNodeMoved and ErrAuthorities it is to be run
// again, by a new process. What a user can mend is checked first, before anything is changed.
func Run(ctx context.Context, cfg *config.Config, observer Observer) (err error) {
	dir := datadir.Dir(cfg.DataDir)
	phase, err := kubeinit.Setup(cfg.Log)
	if err != nil {
		return err
	}
	ctx, fault := phase.Watch(ctx)
	defer func() { err = cmp.Or(err, fault()) }()
	node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
	if err != nil {
		return err
	}
	clusterRanges := slices.Concat(cfg.Cluster.PodCIDRs(), cfg.Cluster.ServiceCIDRs())
	if err := host.SetNoProxy(clusterRanges, cfg.Cluster.ClusterDomain, node.IPs); err != nil {
		return err
	}
	release, err := dir.Take()
	if err != nil {
		return err
	}
	defer release()
	if err := resume(ctx, cfg, dir); err != nil {
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
	certificates, summary, joined, err := identify(ctx, cfg, dir, node, clock)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if cfg.Server.ClusterReset {
		return resetCluster(ctx, cfg, dir, node, certificates)
	}

	group := component.Group{
		StopTimeout: stopTimeout,
		OnChange:    observer.OnChange,
		OnStop:      phase.Stopping,
		OnSlowStop:  observer.OnSlowStop,
		OnReady: func() {
			phase.Ready()
			observer.OnReady(*summary)
		},
	}
	store, err := newState(ctx, cfg, dir, node, certificates, joined)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := addComponents(&group, cfg, node, listener, clock, certificates, store); err != nil {
		return err
	}
	return group.Run(ctx)
}

// addComponents adds all that a server runs: the list reads as its boot order.
func addComponents(group *component.Group, cfg *config.Config, node host.Node, listener net.Listener, clock *pki.Clock, certificates *pki.Server, store *state) error {
	dir := datadir.Dir(cfg.DataDir)

	var storage *agent.Storage
	if !cfg.Server.DisableAgent {
		storage = agent.NewStorage(dir, node.Name, cfg.Node, cfg.Cluster)
	}
	registry, tunnels, keys := registration.New(), tunnel.NewServer(), newEncryption(cfg, node, certificates, store)
	api, apiFault := newAPI(cfg, node, listener, clock, certificates, store, registry, tunnels, keys)
	if err := agent.AddCommon(group, node, cfg.Node, cfg.Cluster, clock, newStatus(group, node, cfg.Cluster, store, storage, api, tunnels)); err != nil {
		return err
	}
	group.Add(newKeeper(certificates, dir, clock, node.Name, tunnels, store))

	if err := store.add(group); err != nil {
		return err
	}

	// The port is served before the API server runs. Until that is ready it
	// answers 503.
	gate := supervisor.New(supervisor.Config{
		Listener:    listener,
		Certificate: servingCertificate(api, certificates),
		PKI:         certificates,
		Registry:    registry,
		Dir:         dir,
		Settings:    bootstrap.Settings{Version: version.Version, Cluster: cfg.Cluster},
		Client:      api.ClientConfig("system:kedge:supervisor"),
		Tunnel:      tunnels.Serve,
		Etcd:        store.etcd,
		Token:       store.token,
		APIServers:  otherAPIServers(api),
		API:         api,
		Now:         clock.Now,
	})
	group.Add(gate)
	beforeAPI := []component.Component{store, gate}
	if store.authorities != nil {
		beforeAPI = append(beforeAPI, store.authorities)
	}
	if !cfg.Server.DisableAPIServer {
		group.Add(keys, store)
		beforeAPI = append(beforeAPI, keys)
	}
	group.Add(api, beforeAPI...)

	// The supervisor's user may read registrations as soon as the manifests are there.
	nodesClient, err := kubernetes.NewForConfig(api.ClientConfig("system:kedge:supervisor"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	usable, controllers, faults := addControlPlane(group, cfg, node, certificates, store, api, keys)
	faults = errors.Join(apiFault, faults)
	group.Add(registry.Follow(nodesClient, api.Informers), usable)
	saving := snapshotConfig(cfg, store.saved)
	saving.NodeName, saving.Client, saving.Now = node.Name, api.ClientConfig("system:kedge:snapshots"), clock.Now
	group.Add(snapshot.New(saving), store, usable)
	if store.member != nil {
		group.Add(newMembers(store.member, api.Informers), api)
	}
	if cfg.Server.DisableAgent {
		return faults
	}
	password, err := bootstrap.EnsurePassword(datadir.NodePassword)
	if err != nil {
		return err
	}
	claim := registration.NewServerNode(nodesClient, registration.Claim{
		Node: node.Name, Addresses: node.IPs, Password: password,
		// To the day: the node's certificates are made at each start, and a restart is to write nothing.
		CertificatesEnd: certificates.NodeEnd().Truncate(24 * time.Hour),
	})
	group.Add(claim, usable)

	added, nodeFault := agent.AddTo(group, agent.Config{
		Dir:             dir,
		Node:            node,
		Settings:        cfg.Node,
		Cluster:         cfg.Cluster,
		Clients:         api,
		Informers:       api.Informers,
		Storage:         storage,
		ServingCertFile: certificates.KubeletServingCertFile,
		ServingKeyFile:  certificates.KubeletServingKeyFile,
		ClientCAFile:    certificates.ClientCAFile,
		TLS:             certificates.NodeTLS(),

		ServerCertificate: certificates.ServingCertificate,
	}, claim, controllers...)
	if err := errors.Join(faults, nodeFault); err != nil {
		return err
	}
	addTunnels(group, cfg, node, added.KubeletPort, certificates, api, store)
	group.Add(newNodeRole(api.ClientConfig("system:kedge:node-role"), node.Name, roleLabels(cfg.Server, store)), added.Ready)
	return nil
}

// addControlPlane adds what belongs to the API server of this process, if there is
// one, and returns what whoever uses the API waits for, the controllers, and all
// faults in the user's arguments: the group is not run then.
func addControlPlane(group *component.Group, cfg *config.Config, node host.Node, certificates *pki.Server, store *state, api api, keys *encryption.Encryption) (usable component.Component, loops []component.Component, faults error) {
	server, here := api.(*controlplane.APIServer)
	if !here {
		return api, nil, nil
	}
	manifests := addons.New(addons.Config{
		Client:         api.ClientConfig("system:kedge:bootstrap", "system:masters"),
		Cluster:        cfg.Cluster,
		RuntimeClasses: containerd.RuntimeClasses(),
	})
	group.Add(manifests, api)
	before := []component.Component{api}
	leader := newElection(cfg.Server, node, api, store)
	if leader != nil {
		group.Add(leader, manifests) // which let it elect
		before = append(before, leader)
	}
	if leader != nil || !store.Endpoint().Shared {
		group.Add(newEncryptionKeeper(keys, server, leader), before...)
	}
	if !cfg.Server.DisableControllerManager {
		controllers, fault := controlplane.NewControllers(controlplane.ControllersConfig{
			API:      server,
			Cluster:  cfg.Cluster,
			Files:    certificates.Files,
			Election: leader,
			Args:     cfg.Server.KubeControllerManagerArgs,
		})
		group.Add(controllers, before...)
		loops, faults = append(loops, controllers), errors.Join(faults, fault)
	}
	if !cfg.Server.DisableScheduler {
		scheduler, fault := controlplane.NewScheduler(controlplane.SchedulerConfig{
			API:      server,
			Files:    certificates.Files,
			Election: leader,
			Args:     cfg.Server.KubeSchedulerArgs,
		})
		group.Add(scheduler, before...)
		faults = errors.Join(faults, fault)
	}
	if !cfg.Server.DisableControllerManager {
		if cfg.Cluster.LocalStorage() {
			group.Add(newStorage(server, leader), append(before, manifests)...)
		}
		group.Add(newManifests(cfg, node, server, leader), append(before, manifests)...)
		group.Add(newHelm(cfg, node, server, leader), append(before, manifests)...)
	}
	group.Add(dns.NewEndpoints(dns.EndpointsConfig{
		Client:    api.ClientConfig("system:kedge:dns-endpoints"),
		Informers: api.Informers,
	}), manifests)
	return manifests, loops, faults
}

// advertiseAddress is the address of the API that pods and nodes are told.
func advertiseAddress(cfg config.Server, node host.Node) netip.Addr {
	if cfg.AdvertiseAddress != "" {
		return netip.MustParseAddr(cfg.AdvertiseAddress)
	}
	return node.IPs[0]
}
