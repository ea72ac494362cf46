// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/server_linux.go.
// Follows k8s.io/kubernetes v1.37.2, cmd/kube-proxy/app/server.go.

package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/conntrack"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
)

// newProxier returns the proxier of the configured mode for one or both families.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server_linux.go ProxyServer.createProxier
func (p *Proxy) newProxier(ctx context.Context, families []corev1.IPFamily, podCIDRs []string, recorder events.EventRecorder, health *healthcheck.ProxyHealthServer) (proxy.Provider, error) {
	c, first := p.config, families[0]
	detectors := localDetectors(c, podCIDRs)
	// These are upstream's values for a family of which the node has no address.
	nodeIPs := map[corev1.IPFamily]net.IP{corev1.IPv4Protocol: net.IPv4(127, 0, 0, 1), corev1.IPv6Protocol: net.IPv6loopback}
	var primary []string
	for _, address := range p.cfg.NodeIPs {
		family := corev1.IPv4Protocol
		if address.Is6() {
			family = corev1.IPv6Protocol
		}
		nodeIPs[family] = address.AsSlice()
		primary = append(primary, netip.PrefixFrom(address, address.BitLen()).String())
	}
	expanded := c.DeepCopy()
	expanded.NodePortAddresses = expandNodePortAddresses(c.NodePortAddresses, primary)

	var proxier proxy.Provider
	var err error
	if c.Mode == proxyconfig.ProxyModeNFTables {
		if len(families) == 2 {
			proxier, err = nftables.NewDualStackProxier(ctx, expanded, detectors,
				p.cfg.NodeName, nodeIPs, recorder, health, false)
		} else {
			proxier, err = nftables.NewProxier(ctx, expanded, first, detectors[first],
				p.cfg.NodeName, nodeIPs[first], recorder, health, false)
		}
		if err != nil {
			return nil, fmt.Errorf("use nftables: %w: if this kernel is too old for nftables, set --kube-proxy-arg proxy-mode=iptables", err)
		}
		return proxier, nil
	}

	tables := utiliptables.NewBestEffort()
	for _, family := range families {
		if tables[family] == nil {
			return nil, fmt.Errorf("use iptables for %s: the program iptables or its kernel modules are missing: install them", family)
		}
	}
	if len(families) == 2 {
		proxier, err = iptables.NewDualStackProxier(ctx, expanded, tables, utilsysctl.New(), detectors,
			p.cfg.NodeName, nodeIPs, recorder, health, false)
	} else {
		proxier, err = iptables.NewProxier(ctx, expanded, first, tables[first], utilsysctl.New(), detectors[first],
			p.cfg.NodeName, nodeIPs[first], recorder, health, false)
	}
	if err != nil {
		return nil, fmt.Errorf("use iptables: %w", err)
	}
	return proxier, nil
}

// expandNodePortAddresses returns addresses with networks in the place of upstream's keywords. primary are
// the networks of the keyword for the node's own addresses.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server.go expandNodePortAddressKeywords
func expandNodePortAddresses(addresses, primary []string) []string {
	var expanded []string
	for _, address := range addresses {
		switch address {
		case proxyconfig.NodePortAddressesPrimary:
			expanded = append(expanded, primary...)
		case proxyconfig.NodePortAddressesLocalhost:
			expanded = append(expanded, "127.0.0.0/8", "::1/128")
		case proxyconfig.NodePortAddressesAll:
			expanded = append(expanded, proxyutil.IPv4ZeroCIDR, proxyutil.IPv6ZeroCIDR)
		default:
			expanded = append(expanded, address)
		}
	}
	return expanded
}

// setConntrack sets the sizes and timeouts of connection tracking. It sets them one by one, because in
// a container or a network namespace some may be denied.
//
//upstream:follows k8s.io/kubernetes/cmd/kube-proxy/app/server_linux.go ProxyServer.platformSetup
func (p *Proxy) setConntrack(ctx context.Context) {
	c := p.config.Linux.Conntrack
	var denied []string
	for setting, part := range map[string]proxyconfig.KubeProxyConntrackConfiguration{
		"nf_conntrack_max":                     {MaxPerCore: c.MaxPerCore, Min: c.Min},
		"nf_conntrack_tcp_timeout_established": {TCPEstablishedTimeout: c.TCPEstablishedTimeout},
		"nf_conntrack_tcp_timeout_close_wait":  {TCPCloseWaitTimeout: c.TCPCloseWaitTimeout},
		"nf_conntrack_tcp_be_liberal":          {TCPBeLiberal: c.TCPBeLiberal},
		"nf_conntrack_udp_timeout":             {UDPTimeout: c.UDPTimeout},
		"nf_conntrack_udp_timeout_stream":      {UDPStreamTimeout: c.UDPStreamTimeout},
	} {
		if err := conntrack.SetSysctls(ctx, &part); err != nil {
			denied = append(denied, setting)
		}
	}
	if len(denied) > 0 {
		p.log.Infof("Cannot change %s: the host's own values stay", strings.Join(denied, ", "))
	}
}
