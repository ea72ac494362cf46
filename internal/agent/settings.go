package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
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

// HostResolvConf returns the file that resolvers in the host's own network read.
func HostResolvConf(settings config.Node) string {
	if settings.ResolvConf != "" {
		return settings.ResolvConf
	}
	return "/etc/resolv.conf"
}

// searchDomains returns a component that warns of search domains of the host that break names
// of the cluster in pods. It is ready at once, because nameservers may not answer for a while.
func searchDomains(file, clusterDomain string, warn func(message string)) component.Component {
	const name = "search-domains"
	return component.Func(name, func(ctx context.Context, ready func()) error {
		ready()
		for _, fault := range host.WildcardDomains(ctx, file, clusterDomain) {
			logrus.WithField("component", name).Warn(fault)
			warn(fault)
		}
		<-ctx.Done()
		return nil
	})
}
