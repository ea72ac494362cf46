package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/remoteapi"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	"github.com/kedge-dev/kedge/internal/cluster/serverlb"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// stopTimeout is how long an agent may take to stop. Pods keep running.
const stopTimeout = 30 * time.Second

// Observer has the functions that Run calls to report progress.
type Observer struct {
	// OnChange is called whenever a component's state changes.
	OnChange func(component.Status)
	// OnFault is called when a component reports another fault than before, or none any more.
	OnFault func(component.Status)
	// OnSlowStop is called with the components that a slow stop waits for.
	OnSlowStop func(names []string)
	// OnJoined is called once, when the node has its certificates.
	OnJoined func()
	// OnReady is called once, when the node is ready, with its name.
	OnReady func(node string)
}

// Run runs an agent. It returns nil when ctx is cancelled, or the error of the first
// component that fails. Before it starts the components, it joins the cluster, which also
// gives it the cluster's settings.
func Run(ctx context.Context, cfg *config.Config, process *Process, local *localapi.Server, observer Observer) (err error) {
	if cfg.Agent.Server == "" {
		return errors.New("an agent needs a server to join: set --server https://HOST:6443")
	}
	dir := datadir.Dir(cfg.DataDir)
	ctx, fault := process.Phase.Watch(ctx)
	defer func() { err = cmp.Or(err, fault()) }()
	name, err := host.NodeName(cfg.Node)
	if err != nil {
		return err
	}
	release, err := dir.Take()
	if err != nil {
		return errors.Join(err, CheckArguments(name, cfg.Node, cfg.Cluster))
	}
	defer release()
	if err := check(ctx, cfg, name); err != nil {
		return err
	}
	if err := dir.MakeAgent(); err != nil {
		return err
	}
	WarnRenamed(dir, name)
	clock := pki.NewClock(dir.ClockFile())
	clock.Settle(ctx)
	servers := serverlb.New(serverlb.Config{Server: cfg.Agent.Address(), NodeName: name, File: dir.Servers()})
	passBy(ctx, dir, servers)
	identity, err := join.Join(ctx, join.Config{
		Server:     cfg.Agent.Address(),
		Dial:       servers.DialContext,
		Token:      cfg.Token,
		ShortToken: cfg.Agent.InsecureShortToken,
		Name:       name,
		Resolve: func(s join.Settings) (host.Node, error) {
			return host.ResolveNode(cfg.Node, s.Cluster.PodCIDRs())
		},
		Dir:          dir,
		PasswordFile: datadir.NodePassword,
		Clock:        clock,
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	observer.OnJoined()
	// The server that answered may run no API server itself.
	servers.Learn(identity.Settings.Servers)
	cluster := identity.Settings.Cluster
	clusterRanges := slices.Concat(cluster.PodCIDRs(), cluster.ServiceCIDRs())
	if err := UseNoProxy(clusterRanges, cluster.ClusterDomain, identity.Host.IPs); err != nil {
		return err
	}

	group := component.Group{
		StopTimeout: stopTimeout,
		OnChange:    observer.OnChange,
		OnFault:     observer.OnFault,
		OnStop:      process.Phase.Stopping,
		OnSlowStop:  observer.OnSlowStop,
		OnReady: func() {
			process.Phase.Ready()
			observer.OnReady(name)
		},
	}
	if err := addComponents(&group, cfg, process, identity, local, clock, servers); err != nil {
		return err
	}
	return group.Run(ctx)
}

// passBy lets the agent and the node's pods reach servers even if the service proxy of an earlier process has
// left rules that redirect their connections.
func passBy(ctx context.Context, dir datadir.Dir, servers *serverlb.Balancer) {
	if !proxy.HasRules() {
		return
	}
	helpers, err := assets.Unpack(dir.Assets())
	if err == nil {
		err = UseHelpers(helpers.Bin)
	}
	if err == nil {
		known, _ := servers.Servers()
		err = proxy.PassBy(ctx, known)
	}
	if err != nil && ctx.Err() == nil {
		logrus.WithField("component", "apilb").Warnf("Rules that Services have left on this host may keep it from reaching the servers: %v. "+
			"If it does not reach them, run `nft delete table ip kube-proxy` and `nft delete table ip6 kube-proxy`", err)
	}
}

// addComponents adds everything that an agent runs: first what only agents need, and then
// the node.
func addComponents(group *component.Group, cfg *config.Config, process *Process, identity *join.Identity, local *localapi.Server, clock *pki.Clock, servers *serverlb.Balancer) error {
	dir, cluster := datadir.Dir(cfg.DataDir), identity.Settings.Cluster
	own := func() *tls.Config { return identity.TLS(pki.NodeUser(identity.Host.Name)) }
	clients := remoteapi.NewClients(servers, func(user string, _ ...string) *tls.Config { return identity.TLS(user) })
	objects := remoteapi.NewObjects(clients, identity.Host.Name)
	driver := NewDriver(dir, identity.Host.Name, cfg.Node, cluster)
	told := status.Config{Node: identity.Host.Name, Components: group.Status}
	if driver != nil {
		told.Storage = status.Volumes(driver, objects.Informers)
	}
	flight := NewRecorder(dir)
	if err := AddCommon(group, identity.Host, cfg.Node, cluster, clock, flight, local.With(status.New(told))); err != nil {
		return err
	}
	keeper := newKeeper(identity, clients, clock)
	renewer := group.Add(local.With(keeper))
	group.Add(objects, renewer)
	kubelet := clients.ClientConfig(pki.NodeUser(identity.Host.Name))
	group.Add(servers.Follow(serverlb.FollowConfig{
		Source: serverlb.Endpoints(objectcache.Share(kubelet, objects.Informers, &discoveryv1.EndpointSlice{})),
		Path:   serverlb.ReadyPath,
		TLS:    own(),
	}), objects)
	source := executables.Source{TLS: own(), Servers: func() []string {
		all, _ := servers.Servers()
		return all
	}}
	mesh, err := NewMesh(identity.Host.Name, cluster, nil)
	if err != nil {
		return err
	}
	node, err := AddTo(group, Config{
		Process:    process,
		Dir:        dir,
		Node:       identity.Host,
		Settings:   cfg.Node,
		Cluster:    cluster,
		API:        API{Clients: clients, Reconnect: clients.ReconnectUser, Informers: objects.Informers},
		Servers:    servers,
		Mesh:       mesh,
		Driver:     driver,
		Executable: source.Get,
		Certificates: Certificates{
			ServingCertFile: identity.ServingCertFile(), ServingKeyFile: identity.ServingKeyFile(),
			ClientCAFile: identity.ClientCAFile(), TLS: own(),
		},
		Metrics:  metrics.Divide(Metered(cluster)...),
		Recorder: flight,
	}, objects, nil)
	if err != nil {
		return err
	}
	group.Add(tunnel.NewAgent(tunnel.AgentConfig{
		NodeName:    identity.Host.Name,
		NodeIPs:     identity.Host.IPs,
		KubeletPort: node.KubeletPort,
		PodCIDRs:    cluster.OwnPodCIDRs(),
		Client:      kubelet,
		Servers:     servers,
		TLS:         own(),
		// A server that has restarted may have new authorities.
		Opened: keeper.Look,
		Mesh:   mesh.Stream(),
	}))
	return nil
}

// newKeeper returns the component that renews the node's certificates.
func newKeeper(identity *join.Identity, clients *remoteapi.Clients, clock *pki.Clock) *renewal.Keeper {
	keeper := renewal.New(renewal.Config{
		Now: clock.Now,
		Due: identity.Due,
		Renew: func(ctx context.Context, all bool) ([]string, error) {
			files, err := identity.Renew(ctx, all)
			if len(files) > 0 {
				clients.Reconnect() // so that new connections show the new certificates
			}
			return files, err
		},
	})
	clock.AfterSet(keeper.Look)
	return keeper
}
