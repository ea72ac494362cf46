// Package datadir knows every path under kedge's data directory and beside it,
// and makes the folders with their modes. Nothing else joins such paths.
package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Dir is a data directory. Its methods are the paths in it.
type Dir string

// RunDir holds sockets and pid files, for root only, and the file systems of containers. A
// reboot empties it. Only MakePassable makes it.
const RunDir = "/run/kedge"

// HelpersLink is a link to the folder of the helpers that the running kedge uses.
const HelpersLink = RunDir + "/bin"

// RecordingMemory is the folder in memory of the flight recorder.
const RecordingMemory = RunDir + "/recorder"

// RuntimeLink is a link to the socket of the container runtime that the running kedge
// uses, which may be the user's own.
const RuntimeLink = RunDir + "/cri.sock"

// NodePassword is the file with the password that proves that this machine is the same
// node as before. It is outside the data directory, so that a machine whose data were
// wiped can join again under its name.
const NodePassword = "/etc/kedge/node/password"

// K3sNodePassword is k3s's file for the same. A machine that was a node of k3s, and has no
// NodePassword, stays the same node by it.
const K3sNodePassword = "/etc/rancher/node/password"

// NodeID is the file with the ID in the name of a node with the setting with-node-id.
const NodeID = "/etc/kedge/node/id"

// DNSFolder holds the only files of this host that the ConfigMap coredns-custom may name.
// Root puts them there.
const DNSFolder = "/etc/kedge/dns"

// Other programs hard-code these paths, so kedge keeps to them.
const (
	KubeletRoot = "/var/lib/kubelet"
	// KubeletVolumePlugins is the kubelet's folder of the user's plugins for volumes.
	KubeletVolumePlugins = KubeletRoot + "/volumeplugins"
	CNIConfDir           = "/etc/cni/net.d"
	CNIBinDir            = "/opt/cni/bin"
	// PodLogs has the containers' logs. ContainerLogs has links to them.
	PodLogs       = "/var/log/pods"
	ContainerLogs = "/var/log/containers"
)

// Sockets. Only root can connect to them.
const (
	// LocalSocket is the socket on which commands ask the kedge that runs on this host.
	LocalSocket      = RunDir + "/kedge.sock"
	DatastoreSocket  = RunDir + "/datastore.sock"
	ContainerdSocket = RunDir + "/containerd/containerd.sock"
	// ContainerdState is containerd's folder for state that a reboot removes.
	ContainerdState = RunDir + "/containerd"
)

func (d Dir) join(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Assets is the folder into which the embedded helpers are unpacked, one folder for each
// build.
func (d Dir) Assets() string { return d.join("assets") }

// LockFile is locked by the kedge that runs on this data directory.
func (d Dir) LockFile() string { return d.join("lock") }

// ClockFile records the latest time that kedge has seen.
func (d Dir) ClockFile() string { return d.join("clock") }

// TrustedCA has the hash of the certificate authority that a machine trusted with a short
// token, until the machine has joined.
func (d Dir) TrustedCA() string { return d.join("trusted-ca") }

// Upgrade is the folder of what an upgrade needs. On a server it has executables, each under
// its SHA-256 digest.
func (d Dir) Upgrade() string { return d.join("upgrade") }

// Trial is the file with what became of the last order that this node has tried.
func (d Dir) Trial() string { return d.join("upgrade", "trial.json") }

// Server is the folder of everything that makes this host a server.
func (d Dir) Server() string { return d.join("server") }

// Adopting is a data directory in which the folder of a server is built from another
// program's state. It exists only while that happens, or if it was interrupted.
func (d Dir) Adopting() Dir { return Dir(d.join("adopting")) }

// Adopted is the file that says what was not taken from another program's state.
func (d Dir) Adopted() string { return d.join("server", "adopted.txt") }

// ServerToken is the file with the join token.
func (d Dir) ServerToken() string { return d.join("server", "token") }

// NodeToken is k3s's name of the file with the join token: a link to ServerToken.
func (d Dir) NodeToken() string { return d.join("server", "node-token") }

// AgentToken is the file with the token for agents only, if there is one.
func (d Dir) AgentToken() string { return d.join("server", "agent-token") }

// AuditLog is the default path of the API server's audit log. AuditPolicy is the file
// that says what is logged. Admission is the configuration of admission for pods and
// events.
func (d Dir) AuditLog() string { return d.join("server", "logs", "audit.log") }

// AuditPolicy: see AuditLog.
func (d Dir) AuditPolicy() string { return d.join("server", "etc", "audit-policy.yaml") }

// Admission: see AuditLog.
func (d Dir) Admission() string { return d.join("server", "etc", "admission.yaml") }

// ServerTLS is the folder of the certificate authorities and server leaves.
func (d Dir) ServerTLS() string { return d.join("server", "tls") }

// NextServerTLS is the folder that replaces ServerTLS at the next start, if it exists.
func (d Dir) NextServerTLS() string { return d.join("server", "tls-next") }

// PreviousServerTLS is the former ServerTLS.
func (d Dir) PreviousServerTLS() string { return d.join("server", "tls-previous") }

// EtcdTLS is the folder of the authorities and certificates of etcd members.
func (d Dir) EtcdTLS() string { return d.join("server", "tls", "etcd") }

// Etcd is the folder of this server's etcd member, if it has one.
func (d Dir) Etcd() string { return d.join("server", "db", "etcd") }

// ServerDB is the folder of the SQLite database.
func (d Dir) ServerDB() string { return d.join("server", "db") }

// DatastoreEndpoint is a file that exists if the state is in the user's own datastore.
func (d Dir) DatastoreEndpoint() string { return d.join("server", "datastore-endpoint") }

// Snapshots is the folder of the datastore's snapshots, unless the user sets another.
func (d Dir) Snapshots() string { return d.join("server", "snapshots") }

// Restore is the journal of a restore that has started and not finished.
func (d Dir) Restore() string { return d.join("server", "restore.json") }

// BackupWriter is the key with which a restored server writes the backup, until it has put it into the cluster.
func (d Dir) BackupWriter() string { return d.join("server", "backup-writer.json") }

// BackupVolumes says which volumes come back after a restore, until the server has put it into the cluster.
func (d Dir) BackupVolumes() string { return d.join("server", "backup-volumes.json") }

// Restoring is the folder of the data that are about to replace the datastore.
func (d Dir) Restoring() string { return d.join("server", "restoring") }

// Replaced is the folder into which a restore puts the former data. began is when it
// started, in seconds since 1970.
func (d Dir) Replaced(began int64) string {
	return d.join("server", "replaced-"+strconv.FormatInt(began, 10))
}

// SQLite is the database of a single server.
func (d Dir) SQLite() string { return d.join("server", "db", "state.db") }

// Manifests is the folder whose objects kedge applies.
func (d Dir) Manifests() string { return d.join("server", "manifests") }

// VolumePlugins is the folder of plugins for volumes of a server that is no node, unless the
// host has the kubelet's.
func (d Dir) VolumePlugins() string { return d.join("server", "volumeplugins") }

// Charts is the folder of charts that HelmCharts can name. The path is the same as in
// k3s.
func (d Dir) Charts() string { return d.join("server", "static", "charts") }

// AgentTLS is the folder of this node's own certificates.
func (d Dir) AgentTLS() string { return d.join("agent", "tls") }

// AgentEtc is the folder of the configuration that kedge writes for the node's parts.
func (d Dir) AgentEtc() string { return d.join("agent", "etc") }

// ClusterSettings is the file with the cluster's settings, as this agent knows them.
func (d Dir) ClusterSettings() string { return d.join("agent", "etc", "cluster.json") }

// VolumesRecord is the file with the folder of this node's volumes.
func (d Dir) VolumesRecord() string { return d.join("agent", "etc", "volumes-folder") }

// Servers is the file in which an agent keeps the addresses of its cluster's servers.
func (d Dir) Servers() string { return d.join("agent", "etc", "servers.json") }

// EtcdServers is the file in which a server without etcd keeps the addresses of those
// that have it.
func (d Dir) EtcdServers() string { return d.join("server", "etcd-servers.json") }

// CNIConf is the folder of kedge's own CNI configuration.
func (d Dir) CNIConf() string { return d.join("agent", "etc", "cni", "net.d") }

// StaticPods is the folder of static pod manifests.
func (d Dir) StaticPods() string { return d.join("agent", "pod-manifests") }

// Images is the folder whose image archives are preloaded.
func (d Dir) Images() string { return d.join("agent", "images") }

// Storage is the folder of this node's volumes, unless the user sets another.
func (d Dir) Storage() string { return d.join("storage") }

// Containerd is containerd's root.
func (d Dir) Containerd() string { return d.join("agent", "containerd") }

// ContainerdConfig is the configuration that kedge writes for containerd.
func (d Dir) ContainerdConfig() string { return d.join("agent", "etc", "containerd", "config.toml") }

// ContainerdDropIns are patterns of files with the user's own configuration of
// containerd: kedge's place for them, and k3s's.
func (d Dir) ContainerdDropIns() []string {
	return []string{"/etc/kedge/containerd/*.toml", d.join("agent", "etc", "containerd", "config-v3.toml.d", "*.toml")}
}

// Recording is the folder of what the flight recorder keeps.
func (d Dir) Recording() string { return d.join("recorder") }

// RegistryCerts is the folder of registry settings, a folder for each host.
func (d Dir) RegistryCerts() string { return d.join("agent", "etc", "containerd", "certs.d") }

// All returns everything that kedge makes in the data directory. The directory may hold
// other files of the user.
func (d Dir) All() []string {
	return []string{d.Server(), string(d.Adopting()), d.join("agent"), d.Storage(), d.Assets(), d.Upgrade(), d.Recording(), d.ClockFile(), d.TrustedCA(), d.LockFile()}
}

// MakeServer makes the folders of a server that are missing.
func (d Dir) MakeServer() error {
	return makeAll(d.ServerTLS(), d.ServerDB(), d.Manifests(), d.Charts())
}

// MakeAgent makes the folders of a node that are missing.
func (d Dir) MakeAgent() error {
	return makeAll(d.AgentTLS(), d.AgentEtc(), d.CNIConf(), d.StaticPods(), d.Images(), d.Containerd())
}

func makeAll(folders ...string) error {
	for _, folder := range folders {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("make data directory: %w", Explain(err))
		}
	}
	return MakePassable(RunDir)
}

// MakePassable makes a folder that every user of the host can pass through, and only root
// can read. The root of a pod with users of its own (hostUsers: false) is another user of
// the host, and reaches its file system below ContainerdState. The mode is also set if the
// folder exists.
func MakePassable(folder string) error {
	err := os.MkdirAll(folder, 0o711)
	if err == nil {
		err = os.Chmod(folder, 0o711)
	}
	if err != nil {
		return fmt.Errorf("make folder: %w", Explain(err))
	}
	return nil
}
