// Package agent is a kedge node: THE list of its components in boot order. A
// server adds the same list to its own.
package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/assets"
	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/containerd"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/dns"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/kubelet"
	"github.com/kedge-dev/kedge/internal/network"
	"github.com/kedge-dev/kedge/internal/pki"
	"github.com/kedge-dev/kedge/internal/proxy"
)

// Config is what a node is made of.
type Config struct {
	Dir      datadir.Dir
	Node     host.Node
	Settings config.Node
	Cluster  config.Cluster
	// Clients connects each component to the API under a name of its own.
	Clients Clients
	// The kubelet's serving certificate, and who may call it.
	ServingCertFile, ServingKeyFile string
	ClientCAFile                    string
}

// Clients makes a connection to the API for a user who is in groups.
type Clients interface {
	ClientConfig(user string, groups ...string) *rest.Config
}

// nodeClient calls as the node itself.
func (c *Config) nodeClient() *rest.Config {
	return c.Clients.ClientConfig(pki.NodeUser(c.Node.Name), pki.NodesGroup, pki.NodeGroup(c.Node.Name))
}

// AddTo adds a node's components to group, those that talk to the API after
// the component api, and returns the one that is ready when the node is. What
// is wrong with the host or the settings is returned before anything runs.
//
// The kubelet starts after those of first, which are the controllers where they
// are in this process. Upstream's CSI volume plugin keeps the node's name in a
// variable of the package that the last one to set the plugin up overwrites
// (pkg/volume/csi/csi_plugin.go, nim), and the controllers have no node: the
// kubelet would never get ready, nor know a CSI driver.
func AddTo(group *component.Group, cfg Config, api component.Component, first ...component.Component) (component.Component, error) {
	if err := cfg.Dir.MakeAgent(); err != nil {
		return nil, err
	}
	facts, err := host.Detect()
	if err != nil {
		return nil, err
	}
	resolvConf, err := host.ResolvConf(cfg.Settings.ResolvConf, cfg.Dir.AgentEtc())
	if err != nil {
		return nil, err
	}
	helpers, err := assets.Unpack(cfg.Dir.Assets())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(linkHelpers(helpers.Bin), useHelpers(helpers.Bin)); err != nil {
		return nil, err
	}
	var (
		podCIDRs   = cfg.Cluster.PodCIDRs()
		clusterDNS = cfg.Cluster.DNSAddresses()
	)

	hostComponent := host.New(host.Config{Facts: facts, IPv6: hasIPv6(podCIDRs)})
	group.Add(hostComponent)

	runtime := containerd.New(containerd.Config{
		Root:           cfg.Dir.Containerd(),
		State:          datadir.ContainerdState,
		Socket:         datadir.ContainerdSocket,
		ConfigFile:     cfg.Dir.ContainerdConfig(),
		DropIns:        cfg.Dir.ContainerdDropIns(),
		CertsDir:       cfg.Dir.RegistryCerts(),
		PauseArchive:   helpers.PauseArchive,
		PauseImage:     assets.PauseImage,
		ImagesDir:      cfg.Dir.Images(),
		CNIBinDirs:     []string{helpers.Bin, datadir.CNIBinDir},
		CNIConfDir:     cniConfDir(cfg),
		Snapshotter:    cfg.Settings.Snapshotter,
		DefaultRuntime: cfg.Settings.DefaultRuntime,
		SELinux:        cfg.Settings.SELinux,
		Facts:          facts,
	})
	group.Add(runtime, hostComponent)

	kubeletComponent, kubeletFault := kubelet.New(kubelet.Config{
		NodeName:         cfg.Node.Name,
		NodeIPs:          cfg.Node.IPs,
		Client:           cfg.nodeClient(),
		ContainerdSocket: datadir.ContainerdSocket,
		ClusterDNS:       clusterDNS,
		ClusterDomain:    cfg.Cluster.ClusterDomain,
		ResolvConf:       resolvConf,
		ServingCertFile:  cfg.ServingCertFile,
		ServingKeyFile:   cfg.ServingKeyFile,
		ClientCAFile:     cfg.ClientCAFile,
		StaticPods:       cfg.Dir.StaticPods(),
		Root:             datadir.KubeletRoot,
		Facts:            facts,
		Labels:           cfg.Settings.NodeLabels,
		Taints:           cfg.Settings.NodeTaints,
		Args:             cfg.Settings.KubeletArgs,
	})
	group.Add(kubeletComponent, append(first, runtime, api)...)

	networkComponent := network.New(network.Config{
		Client:      cfg.Clients.ClientConfig("system:kedge:flannel", pki.NodeGroup(cfg.Node.Name)),
		NodeName:    cfg.Node.Name,
		NodeIPs:     cfg.Node.IPs,
		ExternalIPs: cfg.Settings.ExternalIPs(),
		Interface:   cfg.Settings.FlannelIface,
		Cluster:     cfg.Cluster,
		ConfDir:     cfg.Dir.CNIConf(),
		Nftables:    facts.Nftables,
	})
	group.Add(networkComponent, hostComponent, api)

	proxyComponent, proxyFault := proxy.New(proxy.Config{
		Client:   cfg.Clients.ClientConfig("system:kube-proxy", pki.NodeGroup(cfg.Node.Name)),
		NodeName: cfg.Node.Name,
		NodeIPs:  cfg.Node.IPs,
		Cluster:  cfg.Cluster,
		Nftables: facts.Nftables,
		Args:     cfg.Settings.KubeProxyArgs,
	})
	group.Add(proxyComponent, hostComponent, api)

	dnsComponent := dns.New(dns.Config{
		Client:        cfg.Clients.ClientConfig("system:kedge:dns", pki.NodeGroup(cfg.Node.Name)),
		NodeName:      cfg.Node.Name,
		NodeIPs:       cfg.Node.IPs,
		PodCIDRs:      podCIDRs,
		ClusterDomain: cfg.Cluster.ClusterDomain,
		ClusterDNS:    clusterDNS,
		ResolvConf:    hostResolvConf(cfg.Settings),
	})
	group.Add(dnsComponent, hostComponent, api)

	node := newNodeReady(cfg)
	group.Add(node, kubeletComponent, networkComponent, proxyComponent, dnsComponent)
	// Faults in the user's arguments, all of them; the group is not run then.
	return node, errors.Join(kubeletFault, proxyFault)
}

// linkHelpers lets `kedge crictl` find the helpers.
func linkHelpers(bin string) error {
	if err := os.Remove(datadir.HelpersLink); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("link helpers: %w", err)
	}
	if err := os.Symlink(bin, datadir.HelpersLink); err != nil {
		return fmt.Errorf("link helpers: %w", err)
	}
	return nil
}

// useHelpers lets everything in this process find kedge's own helpers first.
func useHelpers(bin string) error {
	if err := os.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	return nil
}
