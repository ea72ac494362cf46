package agent

import (
	"net/netip"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// hasIPv6 tells whether pods have IPv6 addresses.
func hasIPv6(podCIDRs []netip.Prefix) bool {
	return slices.ContainsFunc(podCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// cniConfDir returns the folder of CNI configurations: kedge's own, or the one where
// other CNIs install themselves and other runtimes look.
func cniConfDir(cfg Config) string {
	if cfg.Cluster.FlannelBackend == "none" || cfg.Settings.ContainerRuntimeEndpoint != "" {
		return datadir.CNIConfDir
	}
	return cfg.Dir.CNIConf()
}

// hostResolvConf returns the file that resolvers in the host's own network read.
func hostResolvConf(settings config.Node) string {
	if settings.ResolvConf != "" {
		return settings.ResolvConf
	}
	return "/etc/resolv.conf"
}
