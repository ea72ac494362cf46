package agent

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/mesh"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/dns"
	"github.com/kedge-dev/kedge/internal/node/kubelet"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// CheckArguments returns all faults in the user's arguments for upstream's kubelet and
// kube-proxy, with those that only this kernel makes faults, and whether this machine can do what
// selinux asks for. It changes nothing, and nothing needs to run. node is the node's name.
func CheckArguments(node string, settings config.Node, cluster config.Cluster) error {
	facts, err := host.Detect()
	if err != nil {
		return err
	}
	_, kubeletFault := kubelet.New(kubelet.Config{
		NodeName:      node,
		Root:          datadir.KubeletRoot,
		ClusterDNS:    cluster.DNSAddresses(),
		ClusterDomain: cluster.ClusterDomain,
		Facts:         facts,
		Labels:        settings.NodeLabels,
		Taints:        settings.NodeTaints,
		ProtectKernel: settings.ProtectKernelDefaults,
		Args:          settings.KubeletArgs,
	})
	_, proxyFault := proxy.New(proxy.Config{Cluster: cluster, Args: settings.KubeProxyArgs, NoNftables: facts.NoNftables})
	var labelFault error
	if settings.SELinux && settings.RuntimeSocket() == "" { // a runtime of the user's has a setting of its own
		labelFault = host.CheckSELinux()
	}
	return errors.Join(kubeletFault, proxyFault, labelFault)
}

// Ports are those that a node with these addresses listens on, as far as they are known
// before it joins a cluster.
func Ports(settings config.Node, cluster config.Cluster, ips []netip.Addr) []host.Port {
	var list []host.Port
	// A file of the user's may say another port of the kubelet: it is not read here.
	args := settings.KubeletArgs
	if config.Argument(args, "config")+config.Argument(args, "config-dir") == "" && config.Argument(args, "enable-server") != "false" {
		address := net.JoinHostPort(config.Argument(args, "address"), cmp.Or(config.Argument(args, "port"), "10250"))
		list = append(list, host.Port{Network: "tcp", Address: address, Use: "the kubelet", Change: "--kubelet-arg port=NUMBER"})
	}
	for _, ip := range ips {
		for _, network := range []string{"tcp", "udp"} {
			list = append(list, host.Port{Network: network, Address: net.JoinHostPort(ip.String(), strconv.Itoa(dns.Port)), Use: "the DNS of this node's pods"})
		}
	}
	health := cmp.Or(config.Argument(settings.KubeProxyArgs, "healthz-bind-address"), "127.0.0.1:10256")
	if _, _, err := net.SplitHostPort(health); err == nil && !cluster.DisableKubeProxy {
		list = append(list, host.Port{Network: "tcp", Address: health, Use: "the health of the service proxy", Change: "--kube-proxy-arg healthz-bind-address=ADDRESS:PORT"})
	}
	return list
}

// ClusterPorts are those that every node of a cluster listens on for other nodes.
func ClusterPorts(cluster config.Cluster) []host.Port {
	var list []host.Port
	if cluster.FlannelBackend == "vxlan" {
		list = append(list, host.Port{Network: "udp", Address: ":" + strconv.Itoa(cluster.VXLAN.Port), Use: "VXLAN between nodes", Remote: true})
	}
	if cluster.FlannelBackend == "mesh" {
		list = append(list, host.Port{Network: "udp", Address: ":" + strconv.Itoa(mesh.DefaultPort), Use: "the mesh between nodes", Remote: true})
	}
	if cluster.EmbeddedRegistry {
		list = append(list, host.Port{Network: "tcp", Address: ":" + strconv.Itoa(peers.Port), Use: "images for other nodes", Remote: true})
	}
	return list
}

// check returns everything that would keep an agent from starting and can be known
// before it joins: faults in arguments, and ports that other processes have.
func check(ctx context.Context, cfg *config.Config, name string) error {
	// Without the cluster's ranges the node's addresses are a guess, and only the ports
	// of these depend on it.
	node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
	if err != nil {
		node.IPs = nil
	}
	cluster := cfg.Cluster
	cluster.DisableKubeProxy = true // whether the cluster has the proxy, the agent learns when it joins
	return errors.Join(CheckArguments(name, cfg.Node, cluster), host.CheckPorts(ctx, Ports(cfg.Node, cluster, node.IPs)))
}
