package agent

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// hasIPv6 tells whether pods have IPv6 addresses.
func hasIPv6(podCIDRs []netip.Prefix) bool {
	return slices.ContainsFunc(podCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() })
}

// cniConfDir returns the folder of CNI configurations: kedge's own, or the one where
// other CNIs install themselves and other runtimes look.
func (n *node) cniConfDir() string {
	if n.Cluster.FlannelBackend == "none" || n.Settings.ContainerRuntimeEndpoint != "" {
		return datadir.CNIConfDir
	}
	return n.Dir.CNIConf()
}

// HostResolvConf returns the file that resolvers in the host's own network read.
func HostResolvConf(settings config.Node) string {
	return cmp.Or(settings.ResolvConf, "/etc/resolv.conf")
}

// WarnRenamed warns if this host was another node the last time, for example because a DHCP server has
// given it another name.
func WarnRenamed(dir datadir.Dir, name string) {
	if former := pki.FormerNode(dir); former != "" && former != name {
		logrus.WithField("component", "node").Warnf("This host was node %[1]s the last time, and is node %[2]s now. Local volumes and pods stay with node %[1]s. "+
			"To be node %[1]s again, set `node-name: %[1]s` and restart kedge. Otherwise run `kubectl delete node %[1]s`", former, name)
	}
}

// searchDomains warns of search domains of the host that break names of the cluster in pods. It
// is ready at once, because nameservers may not answer for a while.
func (n *node) searchDomains() component.Component {
	const name = "search-domains"
	return component.Func(name, func(ctx context.Context, ready func()) error {
		ready()
		for _, fault := range host.WildcardDomains(ctx, HostResolvConf(n.Settings), n.Cluster.ClusterDomain) {
			logrus.WithField("component", name).Warn(fault)
			n.events.Warn(fault)
		}
		<-ctx.Done()
		return nil
	})
}
