// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/options.go.
// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/server_linux.go.

package proxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyscheme "k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"
	utilflag "k8s.io/kubernetes/pkg/util/flag"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// newConfiguration returns upstream's defaults, with kedge's settings over them, and the user's
// arguments, each as name=value, over these. The error lists every fault in the arguments.
//
// The arguments have the names and meanings of kube-proxy's. Upstream's FlagSet in
// cmd/kube-proxy/app/options.go cannot be used: it is bound to an unexported field, and its package
// imports the IPVS proxier.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server_linux.go ProxyServer.platformSetup Options.platformApplyDefaults
func newConfiguration(cluster config.Cluster, args []string) (*proxyconfig.KubeProxyConfiguration, error) {
	versioned := &kubeproxy.KubeProxyConfiguration{}
	proxyscheme.Scheme.Default(versioned)
	object, err := proxyscheme.Scheme.ConvertToVersion(versioned, proxyconfig.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("make kube-proxy's defaults: %w", err)
	}
	c, ok := object.(*proxyconfig.KubeProxyConfiguration)
	if !ok {
		return nil, fmt.Errorf("make kube-proxy's defaults: got a %T", object)
	}
	c.Mode = proxyconfig.ProxyModeNFTables
	c.HealthzBindAddress = healthAddress
	c.DetectLocalMode = proxyconfig.LocalModeClusterCIDR
	c.DetectLocal.ClusterCIDRs = cluster.ClusterCIDR

	flags := newFlagSet(c)
	var faults []error
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		name = strings.ReplaceAll(name, "_", "-")
		switch hint, known := elsewhere[name]; {
		case known:
			faults = append(faults, fmt.Errorf("kube-proxy-arg: %s cannot be set here: %s", name, hint))
		case flags.Lookup(name) == nil:
			faults = append(faults, fmt.Errorf("kube-proxy-arg: unknown argument %q", name))
		default:
			if err := flags.Set(name, value); err != nil {
				faults = append(faults, fmt.Errorf("kube-proxy-arg: %w", err))
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if c.Mode != proxyconfig.ProxyModeNFTables && c.Mode != proxyconfig.ProxyModeIPTables {
		return nil, fmt.Errorf("kube-proxy-arg: unknown proxy-mode %q: use nftables or iptables", c.Mode)
	}
	// Upstream does this in cmd/kube-proxy/app/server_linux.go.
	if c.Mode == proxyconfig.ProxyModeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{proxyconfig.NodePortAddressesPrimary}
	}
	if errs := validation.Validate(c); len(errs) > 0 {
		return nil, fmt.Errorf("kube-proxy-arg: %w", errs.ToAggregate())
	}
	return c, nil
}

// newFlagSet binds the names of kube-proxy's arguments to c.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/options.go Options.AddFlags
func newFlagSet(c *proxyconfig.KubeProxyConfiguration) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.Var(&c.Mode, "proxy-mode", "")
	fs.Var(&utilflag.IPPortVar{Val: &c.HealthzBindAddress}, "healthz-bind-address", "")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", c.NodePortAddresses, "")
	fs.BoolVar(&c.Linux.MasqueradeAll, "masquerade-all", c.Linux.MasqueradeAll, "")

	fs.Var(&c.DetectLocalMode, "detect-local-mode", "")
	fs.StringSliceVar(&c.DetectLocal.ClusterCIDRs, "cluster-cidr", c.DetectLocal.ClusterCIDRs, "")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "")

	// Despite their names, the two periods apply to both modes.
	fs.DurationVar(&c.SyncPeriod.Duration, "iptables-sync-period", c.SyncPeriod.Duration, "")
	fs.DurationVar(&c.MinSyncPeriod.Duration, "iptables-min-sync-period", c.MinSyncPeriod.Duration, "")
	fs.DurationVar(&c.ConfigSyncPeriod.Duration, "config-sync-period", c.ConfigSyncPeriod.Duration, "")
	fs.Int32Var(c.IPTables.MasqueradeBit, "iptables-masquerade-bit", *c.IPTables.MasqueradeBit, "")
	fs.BoolVar(c.IPTables.LocalhostNodePorts, "iptables-localhost-nodeports", *c.IPTables.LocalhostNodePorts, "")

	conntrack := &c.Linux.Conntrack
	fs.Int32Var(conntrack.MaxPerCore, "conntrack-max-per-core", *conntrack.MaxPerCore, "")
	fs.Int32Var(conntrack.Min, "conntrack-min", *conntrack.Min, "")
	fs.DurationVar(&conntrack.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", conntrack.TCPEstablishedTimeout.Duration, "")
	fs.DurationVar(&conntrack.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", conntrack.TCPCloseWaitTimeout.Duration, "")
	fs.BoolVar(&conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", conntrack.TCPBeLiberal, "")
	fs.DurationVar(&conntrack.UDPTimeout.Duration, "conntrack-udp-timeout", conntrack.UDPTimeout.Duration, "")
	fs.DurationVar(&conntrack.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", conntrack.UDPStreamTimeout.Duration, "")
	return fs
}
