// Package config is kedge's configuration: one typed Config, declared once.
// The tags of its fields are the keys of the configuration file, the names of
// the flags and, with KEDGE_ before them, those of the environment variables.
// Only the cli package loads it; everything else receives the piece it needs,
// and nothing changes it after Load.
package config

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is everything a user can set.
type Config struct {
	// DataDir is where all of kedge's state is kept.
	DataDir string `key:"data-dir" usage:"folder for all of kedge's state"`
	// Token is the secret that joining nodes show. For a server empty means the
	// one in the data directory, made at the first start; an agent needs it
	// until it has joined.
	Token string `key:"token" secret:"true" usage:"secret with which nodes join (default on a server: made at the first start)"`
	// TokenFile is a file to read it from instead.
	TokenFile string `key:"token-file" usage:"file with the token"`
	// Profile is a set of settings: see applyProfile.
	Profile string `key:"profile" usage:"harden the cluster for a benchmark: cis, the CIS Kubernetes Benchmark. Set the same on all servers and agents"`
	Log     Log
	Agent   Agent
	Server  Server
	Cluster Cluster
	Node    Node

	// Notices are what the user should know about names in the configuration: for example
	// that one is k3s's, or that a variable means nothing.
	Notices []Notice
	// flags are the sources of what SetFlag set, until they are loaded.
	flags Sources
}

// Agent is how an agent, or a server that is not the first, finds its cluster.
type Agent struct {
	// Server is https://HOST:PORT; see Address.
	Server string `key:"server" env:"KEDGE_URL" usage:"server to join, as https://HOST:6443"`
	// InsecureShortToken is about a token that pins no authority.
	InsecureShortToken bool `key:"insecure-short-token" usage:"join with a short token, which is the secret alone and proves nothing. Whoever answers at the address of the server when this host joins gets the secret, and controls this host"`
}

// Log is how much is logged, and where. Fields with the tag reload can be changed
// while kedge runs.
type Log struct {
	Debug bool `key:"debug" reload:"true" usage:"log more, to find faults: the same as log-level=debug"`
	// Verbosity is klog's, for the messages of Kubernetes's own code.
	Verbosity int `key:"v" reload:"true" usage:"verbosity of the messages of Kubernetes's own code, 0 to 10"`
	// Level is for ParseLevels.
	Level  []string `key:"log-level" reload:"true" usage:"log level: error, warn, info or debug, also for single components, as in info,scheduler=debug (default: info)"`
	Format string   `key:"log-format" usage:"format of the log: text or json"`
	File   string   `key:"log" usage:"file to log to (default: stderr, which is the journal under systemd)"`
	// AlsoToStderr has k3s's name.
	AlsoToStderr bool `key:"alsologtostderr" usage:"log to stderr and to the file"`
	// MaxSize is in megabytes.
	MaxSize  int `key:"log-max-size" usage:"size in MB at which a new log file begins"`
	MaxFiles int `key:"log-max-files" usage:"how many old log files are kept"`
}

// Server is the control plane of one server.
type Server struct {
	BindAddress      string   `key:"bind-address" role:"server" usage:"address to listen on (default: all)"`
	HTTPSListenPort  int      `key:"https-listen-port" role:"server" usage:"port of the API"`
	AdvertiseAddress string   `key:"advertise-address" role:"server" usage:"address at which pods and nodes reach the API (default: the node's address)"`
	VIP              string   `key:"vip" role:"server" usage:"address at which one of the servers answers at any time, in the network of the servers. Another server takes the address if that one dies. Set the same on all servers"`
	TLSSAN           []string `key:"tls-san" role:"server" usage:"additional host name or address for which the API's certificate is valid"`
	// AgentToken is a second secret, with which nodes can join but not servers.
	AgentToken string `key:"agent-token" role:"server" secret:"true" usage:"additional secret with which only agents can join"`
	// AgentTokenFile is a file to read it from instead.
	AgentTokenFile string `key:"agent-token-file" role:"server" usage:"file with the agent-token"`
	// ClusterInit and ClusterReset are for several servers with embedded etcd: the
	// first, and the last that is left.
	ClusterInit  bool `key:"cluster-init" role:"server" usage:"begin a cluster of several servers with embedded etcd. Existing state in SQLite moves to etcd. The other servers join with server and token"`
	ClusterReset bool `key:"cluster-reset" role:"server" usage:"make this server the only one of its cluster, after most servers were lost, and exit"`
	Datastore    Datastore
	// DisableAgent leaves the server's own node out, and the others what
	// other servers run.
	DisableAgent             bool   `key:"disable-agent" role:"server" usage:"run only the control plane, and no node"`
	DisableAPIServer         bool   `key:"disable-apiserver" role:"server" usage:"run no API server. Together with disable-controller-manager and disable-scheduler, the server runs only etcd and a node"`
	DisableControllerManager bool   `key:"disable-controller-manager" role:"server" usage:"run no controllers on this server"`
	DisableScheduler         bool   `key:"disable-scheduler" role:"server" usage:"run no scheduler on this server"`
	DisableEtcd              bool   `key:"disable-etcd" role:"server" usage:"run no etcd on this server: it runs only the control plane, and joins a server that has etcd"`
	WriteKubeconfig          string `key:"write-kubeconfig" file:"true" role:"server" usage:"where to write the administrator's kubeconfig"`
	WriteKubeconfigMode      string `key:"write-kubeconfig-mode" role:"server" usage:"file mode of the kubeconfig, in octal"`
	WriteKubeconfigGroup     string `key:"write-kubeconfig-group" role:"server" usage:"group of the kubeconfig, which may read the file if its mode says so, as 0640 does (default: root's)"`
	WriteKubeconfigName      string `key:"write-kubeconfig-name" role:"server" usage:"name of the cluster, the user and the context in the kubeconfig"`

	Snapshots Snapshots
	Backup    Backup

	// MeshRelayRate is for flannel-backend mesh.
	MeshRelayRate int `key:"mesh-relay-rate" role:"server" usage:"how many Mbit/s each node may send to other nodes through this server, with flannel-backend mesh"`

	// PodSecurityStandard is empty for upstream's default, privileged.
	PodSecurityStandard string `key:"pod-security-standard" role:"server" usage:"Pod Security Standard of namespaces without a label of their own, except kube-system: privileged, baseline or restricted (default: privileged; with profile: restricted). Set the same on all servers"`
	// SecretsEncryption is on unless the user sees to it by arguments of the API
	// server.
	SecretsEncryption bool `key:"secrets-encryption" role:"server" usage:"encrypt Secrets in the datastore. Set the same on all servers"`

	KubeAPIServerArgs         []string `key:"kube-apiserver-arg" role:"server" usage:"argument of upstream's kube-apiserver, as name=value"`
	EtcdArgs                  []string `key:"etcd-arg" role:"server" usage:"argument of upstream's etcd, as name=value, for embedded etcd. Others than limits and intervals are kedge's own"`
	KubeControllerManagerArgs []string `key:"kube-controller-manager-arg" role:"server" usage:"argument of upstream's kube-controller-manager, as name=value"`
	KubeSchedulerArgs         []string `key:"kube-scheduler-arg" role:"server" usage:"argument of upstream's kube-scheduler, as name=value"`
}

// Snapshots are when the datastore is saved, and to where.
type Snapshots struct {
	// Disabled is about the schedule only.
	Disabled     bool   `key:"disable-snapshots" role:"server" usage:"save no scheduled snapshots of the datastore"`
	ScheduleCron string `key:"snapshot-schedule-cron" role:"server" usage:"when to save a snapshot, in cron's syntax"`
	Retention    int    `key:"snapshot-retention" role:"server" usage:"how many scheduled snapshots to keep, on this host and in S3"`
	// Dir is empty for the one in the data directory.
	Dir        string `key:"snapshot-dir" role:"server" usage:"folder of snapshots (default: server/snapshots in the data directory)"`
	S3         bool   `key:"s3" role:"server" usage:"keep snapshots in S3 too"`
	S3Settings S3
}

// S3 is a bucket.
type S3 struct {
	Endpoint string `key:"s3-endpoint" role:"server" usage:"S3's HOST or HOST:PORT"`
	// EndpointCA is the path of a file in PEM.
	EndpointCA    string `key:"s3-endpoint-ca" file:"true" role:"server" usage:"file with the certificate authority of S3, in addition to the system's authorities"`
	SkipSSLVerify bool   `key:"s3-skip-ssl-verify" role:"server" usage:"do not check S3's certificate"`
	AccessKey     string `key:"s3-access-key" role:"server" secret:"true" usage:"S3's access key"`
	SecretKey     string `key:"s3-secret-key" role:"server" secret:"true" usage:"S3's secret key; better in the configuration file, or in s3-config-secret"`
	Bucket        string `key:"s3-bucket" role:"server" usage:"S3's bucket"`
	Region        string `key:"s3-region" role:"server" usage:"S3's region"`
	Folder        string `key:"s3-folder" role:"server" usage:"folder in the bucket. Use another folder for each cluster"`
	Insecure      bool   `key:"s3-insecure" role:"server" usage:"S3 without TLS"`
	// ConfigSecret is a Secret in kube-system whose keys are those above.
	// SessionToken belongs to keys that expire.
	SessionToken string `key:"s3-session-token" role:"server" secret:"true" usage:"session token, if the S3 keys are temporary"`
	// BucketLookupType is one of bucketLookupTypes.
	BucketLookupType string `key:"s3-bucket-lookup-type" role:"server" usage:"where the name of the bucket is in S3's URLs: dns (BUCKET.HOST), path (HOST/BUCKET), or auto to choose by the host"`
	// Proxy may hold a password.
	Proxy string `key:"s3-proxy" role:"server" secret:"url" usage:"proxy for S3, as http://HOST:PORT (default: the one in kedge's environment)"`
	// Timeout is a duration: see TransferTimeout.
	Timeout string `key:"s3-timeout" role:"server" usage:"how long sending or fetching a snapshot may take"`
	// Retention is 0 for that of the snapshots on the host.
	Retention    int    `key:"s3-retention" role:"server" usage:"how many scheduled snapshots to keep in S3 (default: snapshot-retention)"`
	ConfigSecret string `key:"s3-config-secret" role:"server" usage:"name of a Secret in the namespace kube-system that has s3 settings, such as s3-access-key and s3-secret-key"`
}

// defaultTransferTimeout is the default of s3-timeout.
const defaultTransferTimeout = 30 * time.Minute

// TransferTimeout returns Timeout parsed, or the default if it is no duration above 0.
func (s *S3) TransferTimeout() time.Duration {
	if timeout, err := time.ParseDuration(s.Timeout); err == nil && timeout > 0 {
		return timeout
	}
	return defaultTransferTimeout
}

// Datastore is a database or an etcd of the user's own.
type Datastore struct {
	// Endpoint is empty for kedge's own. It may hold a password; see IsEtcd.
	Endpoint string `key:"datastore-endpoint" role:"server" secret:"url" usage:"keep the cluster's state in postgres://USER:PASSWORD@HOST/DATABASE, in mysql://USER:PASSWORD@tcp(HOST)/DATABASE (MariaDB too), or in an etcd of your own, https://HOST:2379,https://…; better in the configuration file or in KEDGE_DATASTORE_ENDPOINT than in a flag"`
	CAFile   string `key:"datastore-cafile" file:"true" role:"server" usage:"file with the certificate authority of the datastore"`
	CertFile string `key:"datastore-certfile" file:"true" role:"server" usage:"file with the client certificate for the datastore"`
	KeyFile  string `key:"datastore-keyfile" file:"true" role:"server" usage:"file with the key of datastore-certfile"`
}

// IsEtcd tells whether the endpoint is etcd's.
func (d *Datastore) IsEtcd() bool {
	return strings.HasPrefix(d.Endpoint, "http://") || strings.HasPrefix(d.Endpoint, "https://")
}

// Cluster is what all nodes of a cluster have in common.
type Cluster struct {
	// ClusterCIDR are the ranges of pod addresses: one, or one of each family.
	ClusterCIDR []string `key:"cluster-cidr" role:"server" usage:"range of pod addresses. Two ranges, one of each family, for dual-stack"`
	ServiceCIDR []string `key:"service-cidr" role:"server" usage:"range of Service addresses. Two ranges, one of each family, for dual-stack"`
	// ServiceNodePortRange is FIRST-LAST.
	ServiceNodePortRange string   `key:"service-node-port-range" role:"server" usage:"ports for Services of type NodePort"`
	ClusterDNS           []string `key:"cluster-dns" role:"server" usage:"address of the cluster's DNS (default: the tenth of each service-cidr)"`
	ClusterDomain        string   `key:"cluster-domain" role:"server" usage:"domain of the cluster's names"`
	// Disable are names of disabled parts: see Has and DisabledManifests.
	Disable []string `key:"disable" role:"server" usage:"remove a part of the cluster: coredns, gateway, local-storage, metrics-server, network-policy, servicelb, or the name of a file or a folder in server/manifests, without .yaml"`
	// DisableNetworkPolicy is k3s's flag. It does what network-policy in Disable does.
	DisableNetworkPolicy bool `key:"disable-network-policy" role:"server" usage:"do not enforce NetworkPolicies, for example because a CNI of your own does"`
	// EmbeddedRegistry concerns registries that a node's PrivateRegistry lists.
	EmbeddedRegistry bool `key:"embedded-registry" role:"server" usage:"nodes share images with each other. This applies to the registries that the private-registry file lists as mirrors"`
	// The next three leave out parts that other programs replace.
	DisableCloudController bool   `key:"disable-cloud-controller" role:"server" usage:"leave the addresses, the provider ID and the first taint of each node to a cloud controller manager of your own"`
	DisableKubeProxy       bool   `key:"disable-kube-proxy" role:"server" usage:"run no service proxy, because a CNI of your own replaces it"`
	DisableHelmController  bool   `key:"disable-helm-controller" role:"server" usage:"leave HelmCharts alone"`
	FlannelBackend         string `key:"flannel-backend" role:"server" usage:"how pods of different nodes reach each other: vxlan, host-gw, wireguard-native, mesh for nodes that need not reach each other, or none to bring another CNI"`
	VXLAN                  VXLAN
	// FlannelExternalIP is for nodes that reach each other only by NodeExternalIP.
	FlannelExternalIP bool `key:"flannel-external-ip" role:"server" usage:"send traffic between pods of different nodes to the node-external-ip of each node that has one"`
	FlannelIPv6Masq   bool `key:"flannel-ipv6-masq" role:"server" usage:"give packets of pods to IPv6 addresses outside the cluster the address of the node. Set it to false if other networks know the pods' addresses"`
	Gateway           GatewaySettings
}

// Node is one node.
type Node struct {
	NodeName string `key:"node-name" usage:"name of this node (default: the host's name)"`
	// WithNodeID is for hosts with equal names.
	WithNodeID     bool     `key:"with-node-id" usage:"append an ID to the name of this node. The ID is made at the first start, and kept in /etc/kedge/node/id"`
	NodeIP         []string `key:"node-ip" usage:"address of this node. Two addresses, one of each family, for dual-stack (default: the address of the default route)"`
	NodeExternalIP []string `key:"node-external-ip" usage:"address of this node for users outside its network. Two addresses, one of each family, for dual-stack. Other nodes use it only with flannel-external-ip"`
	FlannelIface   string   `key:"flannel-iface" usage:"interface for traffic between pods of different nodes (default: the one with node-ip)"`
	// FlannelConf is a file in flannel's own format: see network.ReadConf.
	FlannelConf string `key:"flannel-conf" file:"true" usage:"file with settings of flannel's backend, in the format of flannel's configuration: MTU, DirectRouting (vxlan), PersistentKeepaliveInterval (wireguard-native). On servers also VNI and Port (vxlan), which are then those of all nodes"`
	// NodeLabels and NodeTaints are NAME=VALUE and NAME=VALUE:EFFECT.
	NodeLabels []string `key:"node-label" usage:"label to register this node with, as name=value, or as name with an empty value"`
	NodeTaints []string `key:"node-taint" usage:"taint to register this node with, as name=value:effect"`
	ResolvConf string   `key:"resolv-conf" file:"true" usage:"resolv.conf for names outside the cluster (default: the host's)"`
	// ContainerRuntimeEndpoint is a socket, with or without unix:// before it:
	// see RuntimeSocket.
	ContainerRuntimeEndpoint string `key:"container-runtime-endpoint" usage:"socket of your own container runtime, such as unix:///run/crio/crio.sock, in place of kedge's containerd. The runtime finds kedge's network in /etc/cni/net.d and /opt/cni/bin"`
	// PrivateRegistry is a file that need not be there.
	PrivateRegistry string `key:"private-registry" file:"true" usage:"file with mirrors, credentials and TLS settings of image registries, in the format of k3s's registries.yaml"`
	// DisableDefaultRegistryEndpoint is about registries that PrivateRegistry lists.
	DisableDefaultRegistryEndpoint bool `key:"disable-default-registry-endpoint" usage:"never ask a registry itself if the private-registry file lists it as a mirror"`
	// The two of a credential provider are the kubelet's own.
	ImageCredentialProviderBinDir string `key:"image-credential-provider-bin-dir" usage:"folder of the kubelet's credential providers, which get passwords of image registries"`
	ImageCredentialProviderConfig string `key:"image-credential-provider-config" file:"true" usage:"configuration of the kubelet's credential providers"`
	// NonrootDevices is containerd's device_ownership_from_security_context.
	NonrootDevices bool   `key:"nonroot-devices" usage:"containers that do not run as root own the devices that they are given"`
	Snapshotter    string `key:"snapshotter" usage:"containerd's snapshotter: overlayfs or native (default: overlayfs where the kernel has it)"`
	DefaultRuntime string `key:"default-runtime" usage:"containerd's default runtime"`
	// DefaultLocalStoragePath is empty for the folder in the data directory.
	DefaultLocalStoragePath string `key:"default-local-storage-path" usage:"folder of this node's local volumes (default: storage in the data directory)"`
	// ProtectKernelDefaults has the kubelet set nothing in /proc/sys.
	ProtectKernelDefaults bool     `key:"protect-kernel-defaults" usage:"do not change kernel settings. If the kubelet needs other values, kedge exits and prints them"`
	SELinux               bool     `key:"selinux" usage:"label containers for SELinux"`
	KubeletArgs           []string `key:"kubelet-arg" usage:"argument of upstream's kubelet, as name=value"`
	KubeProxyArgs         []string `key:"kube-proxy-arg" usage:"argument of upstream's kube-proxy, as name=value"`
}

// Default returns the configuration of a server about which nothing was said.
func Default() *Config {
	return &Config{
		DataDir: "/var/lib/kedge",
		Log:     Log{Format: "text", MaxSize: 10, MaxFiles: 5},
		Server: Server{
			HTTPSListenPort:     6443,
			WriteKubeconfig:     "/etc/kedge/kedge.yaml",
			WriteKubeconfigMode: "0600",
			WriteKubeconfigName: "default",
			SecretsEncryption:   true,
			MeshRelayRate:       100,
			Backup:              Backup{Interval: "10s", Keep: "7d/90d", Verify: "weekly"},
			Snapshots: Snapshots{
				ScheduleCron: "0 */12 * * *",
				Retention:    5,
				S3Settings:   S3{Endpoint: "s3.amazonaws.com", Region: "us-east-1", BucketLookupType: "auto", Timeout: "30m"},
			},
		},
		Cluster: Cluster{
			ClusterCIDR:          []string{"10.42.0.0/16"},
			ServiceCIDR:          []string{"10.43.0.0/16"},
			ServiceNodePortRange: "30000-32767",
			ClusterDomain:        "cluster.local",
			FlannelBackend:       "vxlan",
			VXLAN:                VXLAN{VNI: 1, Port: 8472},
			FlannelIPv6Masq:      true,
		},
		Node: Node{DefaultRuntime: "runc", PrivateRegistry: "/etc/kedge/registries.yaml"},
	}
}

// Address returns HOST:PORT of the server. It is for a validated Config.
func (a *Agent) Address() string {
	u, _ := url.Parse(a.Server)
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "6443")
	}
	return u.Host
}

// APIServerArg returns the last value of a user's argument of the API server,
// empty if there is none.
func (s *Server) APIServerArg(name string) string { return Argument(s.KubeAPIServerArgs, name) }

// Argument returns the last value of an argument among args, each name=value. It is
// empty if there is none.
func Argument(args []string, name string) (value string) {
	for _, arg := range args {
		given, text, _ := strings.Cut(arg, "=")
		if strings.ReplaceAll(strings.TrimLeft(given, "-"), "_", "-") == name {
			value = text
		}
	}
	return value
}

// Part is a part of the cluster that Disable can remove. The names are k3s's.
type Part string

// The parts. Each has a folder of its name in the manifests package, if it has objects in
// the cluster.
const (
	CoreDNS       Part = "coredns"
	Gateway       Part = "gateway"
	LocalStorage  Part = "local-storage"
	MetricsServer Part = "metrics-server"
	NetworkPolicy Part = "network-policy"
	ServiceLB     Part = "servicelb"
)

// Parts returns all parts.
func Parts() []Part {
	return []Part{CoreDNS, Gateway, LocalStorage, MetricsServer, NetworkPolicy, ServiceLB}
}

// Has tells whether the cluster has a part.
func (c *Cluster) Has(part Part) bool {
	switch {
	case slices.Contains(c.Disable, string(part)):
		return false
	case part == Gateway:
		return !slices.Contains(c.Disable, traefik)
	case part == NetworkPolicy:
		return !c.DisableNetworkPolicy
	}
	return true
}

// EnforcesPolicies tells whether NetworkPolicies are enforced, by kedge or probably by a
// network that the user brings.
func (c *Cluster) EnforcesPolicies() bool {
	return c.Has(NetworkPolicy) || c.FlannelBackend == "none"
}

// NamesPart tells whether a name in Disable is that of a part, or k3s's for it.
func NamesPart(name string) bool { return name == traefik || slices.Contains(Parts(), Part(name)) }

// DisabledManifests are the names in Disable that are not of kedge's own parts. The name
// traefik is among them, so that a manifest of that name stays disabled as in k3s.
func (c *Cluster) DisabledManifests() []string {
	return slices.DeleteFunc(slices.Clone(c.Disable), func(name string) bool { return slices.Contains(Parts(), Part(name)) })
}

// PodCIDRs returns ClusterCIDR parsed. It is for a validated Config.
func (c *Cluster) PodCIDRs() []netip.Prefix { return mustPrefixes(c.ClusterCIDR) }

// ServiceCIDRs returns ServiceCIDR parsed. It is for a validated Config.
func (c *Cluster) ServiceCIDRs() []netip.Prefix { return mustPrefixes(c.ServiceCIDR) }

// DNSAddresses returns ClusterDNS parsed, or the tenth address of each range of
// Services. It is for a validated Config.
func (c *Cluster) DNSAddresses() []netip.Addr {
	addresses := mustAddresses(c.ClusterDNS)
	if len(addresses) > 0 {
		return addresses
	}
	for _, prefix := range c.ServiceCIDRs() {
		address := prefix.Addr()
		for range 10 {
			address = address.Next()
		}
		addresses = append(addresses, address)
	}
	return addresses
}

// RuntimeSocket returns the path of the socket of the user's own container
// runtime, or nothing if kedge's containerd is used.
func (n *Node) RuntimeSocket() string {
	return strings.TrimPrefix(n.ContainerRuntimeEndpoint, "unix://")
}

// ExternalIPs returns NodeExternalIP parsed. It is for a validated Config.
func (n *Node) ExternalIPs() []netip.Addr { return mustAddresses(n.NodeExternalIP) }

func mustAddresses(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses
}

func mustPrefixes(cidrs []string) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(cidrs))
	for i, cidr := range cidrs {
		prefixes[i] = netip.MustParsePrefix(cidr)
	}
	return prefixes
}
