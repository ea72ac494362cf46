package config

// vpnAuth is what users of k3s's VPN can do.
const vpnAuth = "Remove the key. For nodes that do not reach each other, set flannel-backend: mesh on all servers, which needs no VPN. " +
	"Or run the VPN on the host, and set node-ip to the address of the host in the VPN."

// k3sKeys are the flags of `k3s server` and `k3s agent` as of v1.36, which are also the keys
// of k3s's configuration file: those of its documentation, and those that its help does not
// show. testdata says where each is documented. Sentences are for users.
var k3sKeys = []K3sKey{
	// Configuration and log
	{"config", Same, "", ""},
	{"debug", Same, "", ""},
	{"v", Same, "", ""},
	{"vmodule", Needless, "", "kedge sets levels for components, not for files: use log-level, as in log-level: info,scheduler=debug."},
	{"log", Same, "", ""},
	{"alsologtostderr", Same, "", ""},

	// Addresses
	{"bind-address", Same, "", ""},
	{"https-listen-port", Same, "", ""},
	{"supervisor-port", Refused, "", "kedge has one port for everything: remove the key, and set https-listen-port."},
	{"apiserver-port", Refused, "", "kedge has one port for everything: remove the key, and set https-listen-port."},
	{"apiserver-bind-address", Refused, "", "kedge has one port for everything: remove the key, and set bind-address."},
	{"advertise-address", Same, "", "The default is node-ip. k3s takes node-external-ip if it is set."},
	{"advertise-port", Refused, "", "Other nodes reach kedge at https-listen-port: remove the key, and set https-listen-port to this port."},
	{"tls-san", Same, "", ""},
	{"tls-san-security", Needless, "", "kedge's certificate is only for the addresses of the server, for the names of the API in the cluster and for tls-san. A connection adds no name to it."},
	{"data-dir", Same, "", "The default is /var/lib/kedge."},

	// Network of the cluster
	{"cluster-cidr", Same, "", ""},
	{"service-cidr", Same, "", ""},
	{"service-node-port-range", Same, "", ""},
	{"cluster-dns", Same, "", ""},
	{"cluster-domain", Same, "", ""},
	{"flannel-backend", Same, "", ""},
	{"flannel-ipv6-masq", Same, "", "The default is true."},
	{"flannel-external-ip", Same, "", ""},
	{"no-flannel", Alias, "flannel-backend", ""},
	{"egress-selector-mode", Needless, "", "kedge's API server reaches nodes and pods directly where it can, and through the node's tunnel where it cannot."},
	{"servicelb-namespace", Needless, "", "kedge's load balancer runs no pods."},

	// The administrator's kubeconfig
	{"write-kubeconfig", Same, "", "The default is /etc/kedge/kedge.yaml."},
	{"write-kubeconfig-mode", Same, "", ""},
	{"write-kubeconfig-group", Same, "", ""},
	{"helm-job-image", Needless, "", "kedge installs charts itself, without Jobs."},
	{"helm-controller-arg", Needless, "", "kedge installs charts itself, without k3s's Helm controller."},

	// Joining
	{"token", Same, "", "To join with a short token, without K10...::, set insecure-short-token: true."},
	{"token-file", Same, "", "As token."},
	{"cluster-secret", Alias, "token", ""},
	{"agent-token", Same, "", ""},
	{"agent-token-file", Same, "", ""},
	{"server", Same, "", ""},
	{"cluster-init", Same, "", ""},
	{"cluster-reset", Same, "", ""},
	{"cluster-reset-restore-path", Refused, "", "Remove the key, stop kedge, run `kedge snapshot restore FILE` and start kedge."},

	// Arguments of upstream's programs
	{"kube-apiserver-arg", Same, "", ""},
	{"etcd-arg", Same, "", "Limits and intervals can be set. Names, addresses, certificates and files are kedge's own."},
	{"kube-controller-manager-arg", Same, "", ""},
	{"kube-controller-arg", Alias, "kube-controller-manager-arg", ""},
	{"kube-scheduler-arg", Same, "", ""},
	{"kube-cloud-controller-manager-arg", Needless, "", "kedge runs no cloud controller manager."},
	{"kube-cloud-controller-arg", Needless, "", "kedge runs no cloud controller manager."},

	// Datastore
	{"datastore-endpoint", Same, "", "PostgreSQL, MySQL, MariaDB and etcd. `t4://`, `nats://` and `memory://` are refused, with what to use instead."},
	{"datastore-cafile", Same, "", ""},
	{"datastore-certfile", Same, "", ""},
	{"datastore-keyfile", Same, "", ""},
	{"kine-tls", Needless, "", "kedge's API server reaches its own datastore within the process."},
	{"etcd-expose-metrics", Needless, "", "Prometheus finds etcd's metrics at /metrics/etcd of the kubelet's port, with TLS and a right: see docs/observing.md."},

	// Snapshots
	{"etcd-disable-snapshots", Alias, "disable-snapshots", ""},
	{"etcd-snapshot-name", Needless, "", "kedge calls scheduled snapshots scheduled-NODE-TIME."},
	{"etcd-snapshot-schedule-cron", Alias, "snapshot-schedule-cron", ""},
	{"etcd-snapshot-reconcile-interval", Needless, "", "kedge looks at the folder and at S3 when somebody lists snapshots."},
	{"etcd-snapshot-retention", Alias, "snapshot-retention", ""},
	{"etcd-snapshot-dir", Alias, "snapshot-dir", "The default is server/snapshots in the data directory."},
	{"etcd-snapshot-compress", Needless, "", "kedge compresses all snapshots."},
	{"etcd-s3", Alias, "s3", ""},
	{"etcd-s3-endpoint", Alias, "s3-endpoint", ""},
	{"etcd-s3-endpoint-ca", Alias, "s3-endpoint-ca", ""},
	{"etcd-s3-skip-ssl-verify", Alias, "s3-skip-ssl-verify", ""},
	{"etcd-s3-access-key", Alias, "s3-access-key", ""},
	{"etcd-s3-secret-key", Alias, "s3-secret-key", ""},
	{"etcd-s3-session-token", Alias, "s3-session-token", ""},
	{"etcd-s3-bucket", Alias, "s3-bucket", ""},
	{"etcd-s3-bucket-lookup-type", Alias, "s3-bucket-lookup-type", ""},
	{"etcd-s3-region", Alias, "s3-region", ""},
	{"etcd-s3-folder", Alias, "s3-folder", ""},
	{"etcd-s3-retention", Alias, "s3-retention", "The default is snapshot-retention."},
	{"etcd-s3-proxy", Alias, "s3-proxy", ""},
	{"etcd-s3-config-secret", Alias, "s3-config-secret", ""},
	{"etcd-s3-insecure", Alias, "s3-insecure", ""},
	{"etcd-s3-timeout", Alias, "s3-timeout", "The default is 30m."},

	// Parts of the cluster
	{"default-local-storage-path", Same, "", "The default is storage in the data directory."},
	{"disable", Same, "", ""},
	{"no-deploy", Alias, "disable", ""},
	{"disable-scheduler", Same, "", ""},
	{"disable-cloud-controller", Same, "", "kedge itself runs no cloud controller manager. With the key, each node waits for yours. To give the load balancer away too, add servicelb to disable."},
	{"disable-kube-proxy", Same, "", ""},
	{"disable-network-policy", Same, "", ""},
	{"disable-helm-controller", Same, "", ""},
	{"disable-apiserver", Same, "", "Set disable-controller-manager and disable-scheduler too."},
	{"disable-controller-manager", Same, "", ""},
	{"disable-etcd", Same, "", ""},
	{"disable-agent", Same, "", ""},
	{"embedded-registry", Same, "", ""},
	{"supervisor-metrics", Needless, "", "kedge's metrics are always at /metrics of https-listen-port, for who has the right: see docs/observing.md."},

	// Node
	{"node-name", Same, "", ""},
	{"with-node-id", Same, "", "The ID is in /etc/kedge/node/id. To keep the name of a node, copy k3s's /etc/rancher/node/id there."},
	{"node-label", Same, "", ""},
	{"node-taint", Same, "", ""},
	{"image-credential-provider-bin-dir", Same, "", "There is no default."},
	{"image-credential-provider-config", Same, "", "There is no default."},
	{"docker", Refused, "", "kedge brings containerd: remove the key. To keep Docker, run cri-dockerd yourself, and set container-runtime-endpoint to its socket."},
	{"container-runtime-endpoint", Same, "", ""},
	{"default-runtime", Same, "", ""},
	{"image-service-endpoint", Refused, "", "Remove the key. For an image service of your own set container-runtime-endpoint to a runtime that has it."},
	{"disable-default-registry-endpoint", Same, "", ""},
	{"nonroot-devices", Same, "", ""},
	{"pause-image", Needless, "", "kedge's pause image is part of the executable."},
	{"snapshotter", Same, "", ""},
	{"private-registry", Same, "", "The default is /etc/kedge/registries.yaml."},
	{"system-default-registry", Needless, "", "kedge pulls no images for its own parts."},
	{"airgap-extra-registry", Refused, "", "Remove the key, and name the registry as a mirror in registries.yaml."},
	{"node-ip", Same, "", ""},
	{"node-external-ip", Same, "", "Other nodes use it only with flannel-external-ip, as in k3s."},
	{"node-internal-dns", Refused, "", "A Node has no name of a host except its own, so that no node passes for another host: remove the key."},
	{"node-external-dns", Refused, "", "A Node has no name of a host except its own, so that no node passes for another host: remove the key."},
	{"resolv-conf", Same, "", ""},
	{"flannel-iface", Same, "", ""},
	{"flannel-conf", Same, "", "MTU, DirectRouting and PersistentKeepaliveInterval can be set, and on servers VNI and Port, which are then those of all nodes. kedge refuses a file whose other settings contradict flannel-backend or cluster-cidr."},
	{"flannel-cni-conf", Refused, "", "kedge makes flannel's CNI configuration itself: remove the key. For other plugins bring a network of your own: see docs/own-cni.md."},
	{"vpn-auth", Refused, "", vpnAuth},
	{"vpn-auth-file", Refused, "", vpnAuth},
	{"kubelet-arg", Same, "", ""},
	{"kube-proxy-arg", Same, "", ""},
	{"protect-kernel-defaults", Same, "", ""},
	{"selinux", Same, "", ""},
	{"disable-selinux", Needless, "", "SELinux is off unless selinux is set."},
	{"lb-server-port", Needless, "", "A node of kedge reaches the servers without a port of its own."},
	{"disable-apiserver-lb", Needless, "", "A node of kedge uses the address in server until it knows the servers."},

	// Secrets, and what k3s calls experimental
	{"secrets-encryption", Same, "", "The default is true."},
	{"secrets-encryption-provider", Needless, "", "kedge chooses the cipher of new keys, and reads what other keys have encrypted."},
	{"enable-pprof", Needless, "", "`kedge support-bundle` has the profiles of the running process."},
	{"rootless", Refused, "", "A server or an agent makes networks and mounts of the host, which needs root: remove the key, and run kedge as root. `kedge run` makes a cluster for one command without root."},
	{"prefer-bundled-bin", Needless, "", "kedge always prefers its own programs."},
}

// k3sValues are the values of k3s's keys that have a verdict of their own.
var k3sValues = []K3sValue{
	{"flannel-backend", "wireguard", Alias, "wireguard-native", ""},
	{"flannel-backend", "ipsec", Refused, "", "Use flannel-backend: wireguard-native, which encrypts too. Set the same on all servers."},
	{"no-flannel", "true", Alias, "none", ""},
	{"no-flannel", "false", Needless, "", ""},
	{"advertise-port", "0", Needless, "", ""},
	{"etcd-arg", "listen-metrics-urls=", Needless, "", "Prometheus finds etcd's metrics at /metrics/etcd of the kubelet's port, with TLS and a right: see docs/observing.md."},
	{"kube-controller-manager-arg", "cert-dir=", Needless, "", "kedge serves the controllers' port with a certificate of its own authority: /cacerts of https-listen-port has the authority."},
	{"kube-scheduler-arg", "cert-dir=", Needless, "", "kedge serves the scheduler's port with a certificate of its own authority: /cacerts of https-listen-port has the authority."},
	{"kube-proxy-arg", "metrics-bind-address=", Needless, "", "Prometheus finds the service proxy's metrics at /metrics/proxy of the kubelet's port, with TLS and a right: see docs/observing.md."},
	{"disable", "traefik", Same, "", "It switches off the gateway, which kedge has in place of Traefik. `disable: gateway` does the same."},
	{"disable", "runtimes", Needless, "", "kedge has RuntimeClasses only for the runtimes that the server finds on its host."},
}

// k3sSwitches are the keys above that are true or false, and not settings of kedge's.
var k3sSwitches = []string{
	"disable-apiserver-lb",
	"disable-selinux", "docker", "enable-pprof", "etcd-disable-snapshots", "etcd-expose-metrics", "etcd-s3", "etcd-s3-insecure",
	"etcd-s3-skip-ssl-verify", "etcd-snapshot-compress", "kine-tls", "no-flannel",
	"prefer-bundled-bin", "rootless", "supervisor-metrics", "tls-san-security",
}

// k3sVariables are the variables of k3s's server and agent, and the keys that they mean.
var k3sVariables = map[string]string{
	"K3S_AGENT_TOKEN":             "agent-token",
	"K3S_AGENT_TOKEN_FILE":        "agent-token-file",
	"K3S_CLUSTER_INIT":            "cluster-init",
	"K3S_CLUSTER_RESET":           "cluster-reset",
	"K3S_CLUSTER_SECRET":          "cluster-secret",
	"K3S_CONFIG_FILE":             "config",
	"K3S_DATASTORE_CAFILE":        "datastore-cafile",
	"K3S_DATASTORE_CERTFILE":      "datastore-certfile",
	"K3S_DATASTORE_ENDPOINT":      "datastore-endpoint",
	"K3S_DATASTORE_KEYFILE":       "datastore-keyfile",
	"K3S_DATA_DIR":                "data-dir",
	"K3S_DEBUG":                   "debug",
	"K3S_KUBECONFIG_GROUP":        "write-kubeconfig-group",
	"K3S_KUBECONFIG_MODE":         "write-kubeconfig-mode",
	"K3S_KUBECONFIG_OUTPUT":       "write-kubeconfig",
	"K3S_LB_SERVER_PORT":          "lb-server-port",
	"K3S_NODE_NAME":               "node-name",
	"K3S_RESOLV_CONF":             "resolv-conf",
	"K3S_SELINUX":                 "selinux",
	"K3S_SYSTEM_DEFAULT_REGISTRY": "system-default-registry",
	"K3S_TOKEN":                   "token",
	"K3S_TOKEN_FILE":              "token-file",
	"K3S_URL":                     "server",
	"K3S_VPN_AUTH":                "vpn-auth",
	"K3S_VPN_AUTH_FILE":           "vpn-auth-file",
}

// k3sNoKeys are the variables of k3s's server and agent that mean no key, with what the user
// should know.
var k3sNoKeys = map[string]string{
	"K3S_AGENT_HTTP_PROXY_ALLOWED": "A node of kedge reaches the servers directly, never through a proxy.",
	"CONTAINERD_HTTP_PROXY":        "containerd is a part of kedge: set HTTP_PROXY.",
	"CONTAINERD_HTTPS_PROXY":       "containerd is a part of kedge: set HTTPS_PROXY.",
	"CONTAINERD_NO_PROXY":          "containerd is a part of kedge: set NO_PROXY. kedge adds the addresses of the cluster to it.",
}

// k3sLetters are the keys that a single letter stands for on k3s's command line.
var k3sLetters = map[string]string{
	"token": "t", "server": "s", "data-dir": "d", "node-ip": "i", "log": "l", "write-kubeconfig": "o",
}
