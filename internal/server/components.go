package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	relay "github.com/kedge-dev/kedge/internal/cluster/mesh"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	"github.com/kedge-dev/kedge/internal/cluster/rotation"
	"github.com/kedge-dev/kedge/internal/cluster/supervisor"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/datastore/backup/place"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumebackups"
	"github.com/kedge-dev/kedge/internal/datastore/backup/volumes"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

// volumePlugins returns the controllers' folder of the user's plugins for volumes. A server that
// is no node makes no folder of the kubelet's.
func (s *server) volumePlugins() string {
	if _, err := os.Stat(datadir.KubeletVolumePlugins); err != nil && !s.roles.node {
		return s.dir.VolumePlugins()
	}
	return datadir.KubeletVolumePlugins
}

// newStatus returns the component that answers `kedge status`.
func (s *server) newStatus(group *component.Group) *status.Status {
	told := status.Config{
		Node:       s.node.Name,
		Components: group.Status,
		Datastore:  s.store,
		Tunnels:    s.tunnels.Nodes,
		Cluster: status.ClusterOf(s.api.ClientConfig("system:kedge:status"), s.api.Name(),
			s.cfg.Cluster.EnforcesPolicies(), group.Status),
	}
	if s.driver != nil {
		told.Storage = status.Volumes(s.driver, s.api.Informers)
	}
	told.Problems = func(ctx context.Context) (problems []status.Problem) {
		if s.api.server != nil {
			problems = damageProblems(s.api.server.Damaged())
		}
		if s.volumeBackups != nil {
			problems = append(problems, volumeProblems(s.volumeBackups.Missing(ctx))...)
		}
		return problems
	}
	if s.backup != nil {
		told.Backup = s.backup.Status
	}
	return status.New(told)
}

// volumeProblems returns what `kedge status` says about volumes that are not in the backup.
func volumeProblems(missing []*volumebackups.VolumeBackup, err error) []status.Problem {
	if err != nil {
		return []status.Problem{{What: "it is not known which volumes are in the backup", Do: err.Error()}}
	}
	if len(missing) == 0 {
		return nil
	}
	first := missing[0]
	what := fmt.Sprintf("the last backup of the volume of claim %s/%s failed", first.Namespace, first.Spec.ClaimName)
	if more := len(missing) - 1; more > 0 {
		what += fmt.Sprintf(", and those of %d other claims", more)
	}
	return []status.Problem{{What: what, Do: first.Status.Message + ". `kubectl get volumebackups -A` shows all"}}
}

// damageProblems returns what `kedge status` says about stored objects that cannot be read.
func damageProblems(damaged []apiserver.DamagedObject) (problems []status.Problem) {
	for _, object := range damaged {
		problems = append(problems, status.Problem{What: object.String(), Do: object.Repair()})
	}
	return problems
}

// newKeeper returns the component that renews this server's certificates.
func (s *server) newKeeper() *renewal.Keeper {
	settings := rotation.Config{
		Certificates: s.certificates,
		Dir:          s.dir,
		Clock:        s.clock,
		Node:         s.node.Name,
		Dial:         s.tunnels.Dial,
		Authorities:  s.store.Authorities,
	}
	if etcd := s.store.Etcd; etcd != nil {
		settings.Members = func() []string {
			members, _ := etcd.Members()
			return members
		}
	}
	return rotation.NewKeeper(settings)
}

// newTunnels makes what nodes connect to, and this server's part of the mesh.
func (s *server) newTunnels() {
	if s.cfg.Cluster.FlannelBackend == "mesh" {
		s.relay = relay.NewRelay(s.node.Name, relay.DefaultPort, int64(s.cfg.Server.MeshRelayRate)*1_000_000/8)
	}
	s.tunnels = tunnel.NewServer(s.relay)
	if s.roles.node {
		var fault error
		s.mesh, fault = agent.NewMesh(s.node.Name, s.cfg.Cluster, s.relay)
		s.faults = append(s.faults, fault)
	}
}

// meshRelay serves the UDP port of the mesh if this server has no node.
func (s *server) meshRelay() component.Component {
	if s.relay == nil || s.roles.node {
		return nil
	}
	return component.Func("mesh-relay", func(ctx context.Context, ready func()) error {
		ready()
		return s.relay.Listen(ctx)
	})
}

// tunnel returns the tunnels through which other servers' API servers reach this server's node.
func (s *server) tunnel(kubeletPort int) component.Component {
	if !s.roles.objects.Shared() && s.roles.api {
		return nil
	}
	settings := tunnel.AgentConfig{
		NodeName:    s.node.Name,
		NodeIPs:     s.node.IPs,
		KubeletPort: kubeletPort,
		PodCIDRs:    s.cfg.Cluster.OwnPodCIDRs(),
		Client:      s.api.ClientConfig(pki.NodeUser(s.node.Name), pki.NodesGroup, pki.NodeGroup(s.node.Name)),
		TLS:         s.certificates.NodeTLS(),
		Servers:     s.api.remote,
		Mesh:        s.mesh.Stream(),
	}
	if s.roles.api {
		settings.Servers = s.others
	}
	return withoutWaiting(tunnel.NewAgent(settings))
}

// withoutWaiting makes a tunnel's component ready at once, because there may be no other
// server yet, or none may be up.
func withoutWaiting(tunnel component.Component) component.Component {
	return component.Func(tunnel.Name(), func(ctx context.Context, ready func()) error {
		ready()
		return tunnel.Run(ctx, func() {})
	})
}

// supervisor serves the port. It answers 503 until the API server is ready.
func (s *server) supervisor(listener net.Listener) *supervisor.Supervisor {
	settings := supervisor.Config{
		Listener:    listener,
		Certificate: servingCertificate(s.api, s.certificates),
		PKI:         s.certificates,
		Registry:    s.registry,
		Dir:         s.dir,
		Settings:    join.Settings{Version: version.Version, Cluster: s.cfg.Cluster},
		Client:      s.api.ClientConfig("system:kedge:supervisor"),
		Tunnel:      s.tunnels.Serve,
		Etcd:        s.store.Etcd,
		Token:       s.store.Token,
		Policies:    s.told.Policies,
		Routes:      s.told.Routes,
		Orders:      s.told.Orders,
		Volumes:     s.told.Volumes,
		APIServers:  s.api.others,
		API:         s.api,
		Now:         s.clock.Now,
	}
	if s.plans != nil {
		settings.Executable = s.plans.Executable
	}
	return supervisor.New(settings)
}

// authorities prepares the authorities that will replace the present ones on all servers.
func (s *server) authorities() component.Component {
	if !s.roles.objects.Shared() {
		return nil
	}
	return s.store.Authorities
}

// keys encrypt the Secrets of the API server.
func (s *server) keys() component.Component {
	if !s.roles.api {
		return nil
	}
	return s.local.With(s.api.keys)
}

// fixedSettings compares the settings with those that the cluster began with.
func (s *server) fixedSettings() component.Component {
	if !s.roles.api {
		return nil
	}
	return join.NewFixedSettings(s.store.Connect, s.cfg.Cluster)
}

// snapshots saves the datastore.
func (s *server) snapshots() component.Component {
	saving := s.choice.Snapshots(s.store.Saved)
	saving.NodeName, saving.Client, saving.Now = s.node.Name, s.api.ClientConfig("system:kedge:snapshots"), s.clock.Now
	return s.local.With(snapshot.New(saving))
}

// newBackup returns what writes every change to a place outside. It is nil if there is no such place.
func (s *server) newBackup() *backup.Backup {
	settings := s.cfg.Server.Backup
	if settings.Location == "" {
		return nil
	}
	interval, _ := time.ParseDuration(settings.Interval) // config has checked all three
	all, daily, _ := settings.KeepTimes()
	verify, _ := settings.VerifyEvery()
	etc := filepath.Dir(config.DefaultPath)
	kept := backup.Server{
		Node: s.node.Name, Dir: s.dir, Etc: etc,
		Encryption: s.cfg.Server.APIServerArg("encryption-provider-config"),
		// A restore is run by an installed kedge, which has its own of these.
		Left: []string{s.cfg.Server.WriteKubeconfig, filepath.Join(etc, "installed"), filepath.Join(etc, "command")},
	}
	return backup.New(backup.Config{
		Client: s.api.ClientConfig("system:kedge:backup"),
		Elected: func(ctx context.Context, loops backup.Loops, ready func()) error {
			return s.leader.RunLoops(ctx, loops, ready)
		},
		Open: func(ctx context.Context, cluster kubernetes.Interface) (place.Place, error) {
			return place.Open(ctx, settings.Location, s.cfg.Server.Snapshots.S3Settings, cluster)
		},
		Location:  settings.Location,
		Interval:  interval,
		Keep:      volumes.Keep{All: all, Daily: daily},
		Verify:    verify,
		Folder:    s.dir.Server(),
		Connect:   s.store.Connect,
		Keys:      []string{encryption.KeyringKey, join.FixedKey},
		Leases:    s.choice.Kind.IsEtcd(),
		Files:     kept.Files,
		Inherited: s.dir.BackupWriter(),
		Node:      s.node.Name,
		Metrics:   s.metrics.Registerer(metrics.APIServer),
		Now:       s.clock.Now,
	})
}

// newVolumeBackups returns what backs up the contents of volumes. It is nil without a backup.
func (s *server) newVolumeBackups() *volumebackups.VolumeBackups {
	if s.backup == nil || !s.cfg.Cluster.Has(config.LocalStorage) {
		return nil
	}
	all, daily, _ := s.cfg.Server.Backup.KeepTimes() // config has checked it
	made, err := volumebackups.New(volumebackups.Config{
		Client: s.api.ClientConfig("system:kedge:backup"),
		Elected: func(ctx context.Context, loops volumebackups.Loops, ready func()) error {
			return s.leader.RunLoops(ctx, loops, ready)
		},
		Store:     s.backup.Volumes,
		Schedule:  s.cfg.Server.Backup.Volumes,
		Keep:      volumes.Keep{All: all, Daily: daily},
		Inherited: s.dir.BackupVolumes(),
		Node:      s.node.Name,
		Now:       s.clock.Now,
	})
	if err != nil {
		s.faults = append(s.faults, err)
		return nil
	}
	s.told.Volumes = made
	return made
}

// members removes the members of etcd whose nodes are deleted.
func (s *server) members() component.Component {
	if s.roles.objects != choice.Member {
		return nil
	}
	return etcd.NewMembers(s.store.Member, s.api.Informers)
}

// claim claims the name of this server's node.
func (s *server) claim() (component.Component, error) {
	password, err := join.EnsurePassword(datadir.NodePassword, datadir.K3sNodePassword)
	if err != nil {
		return nil, err
	}
	return registration.NewServerNode(s.nodesClient, registration.Claim{
		Node: s.node.Name, Addresses: s.node.IPs, Password: password,
		// Truncated to the day, because the node's certificates are made at each start
		// and a restart should not write anything.
		CertificatesEnd: s.certificates.NodeEnd().Truncate(24 * time.Hour),
	}), nil
}

// nodeConfig returns what the node of this server is made from.
func (s *server) nodeConfig() agent.Config {
	settings := agent.Config{
		Process:    s.process,
		Dir:        s.dir,
		Node:       s.node,
		Settings:   s.cfg.Node,
		Cluster:    s.cfg.Cluster,
		API:        agent.API{Clients: s.api, Reconnect: s.api.reconnect, Informers: s.api.Informers},
		Mesh:       s.mesh,
		Driver:     s.driver,
		Executable: s.ownExecutable(),
		Certificates: agent.Certificates{
			ServingCertFile: s.certificates.KubeletServingCertFile, ServingKeyFile: s.certificates.KubeletServingKeyFile,
			ClientCAFile: s.certificates.ClientCAFile, TLS: s.certificates.NodeTLS(),
		},
		Metrics:  s.metrics,
		Recorder: s.recorder,
		Server:   s.told,
	}
	if s.others != nil {
		settings.Servers = s.others
	}
	return settings
}
