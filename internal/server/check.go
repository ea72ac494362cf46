package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/controllers"
	"github.com/kedge-dev/kedge/internal/controlplane/healthport"
	"github.com/kedge-dev/kedge/internal/controlplane/scheduler"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/node/announce"
)

// CheckArguments returns all faults in the user's arguments for upstream's programs that
// a server runs. It changes nothing, and nothing needs to run.
func (r Resolved) CheckArguments() error {
	cfg, roles := r.cfg, r.roles
	faults := []error{etcd.CheckArguments(cfg.Server.EtcdArgs)}
	if roles.api {
		faults = append(faults, apiserver.CheckArguments(cfg.Server.KubeAPIServerArgs))
	}
	if roles.controllers {
		_, fault := controllers.New(controllers.Config{Cluster: cfg.Cluster, Args: cfg.Server.KubeControllerManagerArgs})
		faults = append(faults, fault)
	}
	if roles.scheduler {
		_, fault := scheduler.New(scheduler.Config{Args: cfg.Server.KubeSchedulerArgs})
		faults = append(faults, fault)
	}
	if roles.node {
		name, fault := host.NodeName(cfg.Node)
		faults = append(faults, fault, agent.CheckArguments(name, cfg.Node, cfg.Cluster))
	}
	return errors.Join(faults...)
}

// Ports are those that a server on this node listens on.
func (r Resolved) Ports() []host.Port {
	cfg, roles, node := r.cfg, r.roles, r.node
	list := []host.Port{{
		Network: "tcp", Address: net.JoinHostPort(cfg.Server.BindAddress, strconv.Itoa(cfg.Server.HTTPSListenPort)),
		Use: "the API", Change: "--https-listen-port", Remote: true,
	}}
	for _, h := range []struct {
		runs         bool
		part         metrics.Part
		use, setting string
	}{
		{roles.controllers, metrics.Controllers, "the health and metrics of the controllers", "kube-controller-manager-arg"},
		{roles.scheduler, metrics.Scheduler, "the health and metrics of the scheduler", "kube-scheduler-arg"},
	} {
		address, port := metricsPort(cfg.Server, h.part, node.IPs[0])
		// If the address is wrong, CheckArguments tells.
		if bind := net.ParseIP(address); h.runs && bind != nil && port != "0" {
			for _, ip := range healthport.Addresses(bind) {
				list = append(list, host.Port{Network: "tcp", Address: net.JoinHostPort(ip.String(), port), Use: h.use, Change: "--" + h.setting + " secure-port=NUMBER"})
			}
		}
	}
	if roles.objects == choice.Member {
		list = append(list,
			host.Port{Network: "tcp", Address: net.JoinHostPort(node.IPs[0].String(), "2380"), Use: "the other servers' etcd", Remote: true},
			host.Port{Network: "tcp", Address: "127.0.0.1:2379", Use: "etcd's clients"})
	}
	if !roles.node {
		return list
	}
	return slices.Concat(list, agent.Ports(cfg.Node, cfg.Cluster, node.IPs), agent.ClusterPorts(cfg.Cluster))
}

// metricsPort returns where the controllers or the scheduler of this server serve their
// health and metrics. The port is "0" if they do not.
func metricsPort(settings config.Server, part metrics.Part, node netip.Addr) (address, port string) {
	args, port := settings.KubeControllerManagerArgs, "10257"
	if part == metrics.Scheduler {
		args, port = settings.KubeSchedulerArgs, "10259"
	}
	return cmp.Or(config.Argument(args, "bind-address"), node.String()), cmp.Or(config.Argument(args, "secure-port"), port)
}

// metricsPorts returns the ports at which other hosts find the metrics of the controllers
// and the scheduler.
func metricsPorts(settings config.Server, node netip.Addr) map[metrics.Part]int32 {
	ports := map[metrics.Part]int32{}
	for _, part := range []metrics.Part{metrics.Controllers, metrics.Scheduler} {
		address, text := metricsPort(settings, part, node)
		port, err := strconv.ParseInt(text, 10, 32)
		if ip, wrong := netip.ParseAddr(address); err == nil && wrong == nil && port > 0 && !ip.IsLoopback() {
			ports[part] = int32(port)
		}
	}
	return ports
}

// check returns everything that would keep a server from starting and can be known
// before: faults in arguments, and ports that other processes have.
func (r Resolved) check(ctx context.Context) error {
	return errors.Join(r.CheckArguments(), r.CheckAddresses(), host.CheckPorts(ctx, r.Ports()))
}

// CheckAddresses returns what is wrong with the addresses of this server in the settings. It
// changes nothing, and nothing needs to run.
func (r Resolved) CheckAddresses() error {
	cfg, node := r.cfg, r.node
	addresses, err := host.Addresses()
	if err != nil {
		return err
	}
	if err := errors.Join(checkAdvertised(cfg, addresses), checkVIP(cfg.Server.VIP, node)); err != nil || cfg.Server.VIP == "" {
		return err
	}
	if _, err := (announce.Linux{}).Place(netip.MustParseAddr(cfg.Server.VIP)); err != nil {
		return fmt.Errorf("vip %s cannot be on this host: %w. Set vip to an address of a network that this host is in: %v", cfg.Server.VIP, err, node.IPs)
	}
	return nil
}

// checkAdvertised returns an error if other hosts cannot reach this one at advertise-address:
// it must be an address of the host, or one of those by which others reach it from outside.
func checkAdvertised(cfg *config.Config, addresses []netip.Addr) error {
	if cfg.Server.AdvertiseAddress == "" {
		return nil
	}
	advertised := netip.MustParseAddr(cfg.Server.AdvertiseAddress)
	if slices.Contains(addresses, advertised) || slices.Contains(cfg.Node.ExternalIPs(), advertised) || cfg.Server.VIP == cfg.Server.AdvertiseAddress {
		return nil
	}
	return fmt.Errorf("advertise-address %s is on no interface of this host: set it to one of %v. If other hosts reach this host at %[1]s, such as by NAT, set node-external-ip to %[1]s, too", advertised, addresses)
}

// checkVIP returns an error if the address of the control plane cannot move between hosts
// like this one.
func checkVIP(vip string, node host.Node) error {
	if vip == "" {
		return nil
	}
	address := netip.MustParseAddr(vip)
	if slices.Contains(node.IPs, address) {
		return fmt.Errorf("vip %s is the address of this node: use another address of the servers' network, that no host has", address)
	}
	if !slices.ContainsFunc(node.IPs, func(ip netip.Addr) bool { return ip.Is4() == address.Is4() }) {
		return fmt.Errorf("vip %s is of another address family than the addresses of this node, %v: use an address of their family", address, node.IPs)
	}
	return nil
}
