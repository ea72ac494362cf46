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
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/controllers"
	"github.com/kedge-dev/kedge/internal/controlplane/scheduler"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

// CheckArguments returns all faults in the user's arguments for upstream's programs that
// a server runs. It changes nothing, and nothing needs to run.
func CheckArguments(cfg *config.Config) error {
	roles := rolesOf(cfg, datadir.Dir(cfg.DataDir))
	var faults []error
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
func Ports(cfg *config.Config, node host.Node) []host.Port {
	roles := rolesOf(cfg, datadir.Dir(cfg.DataDir))
	list := []host.Port{{
		Network: "tcp", Address: net.JoinHostPort(cfg.Server.BindAddress, strconv.Itoa(cfg.Server.HTTPSListenPort)),
		Use: "the API", Change: "--https-listen-port", Remote: true,
	}}
	health := func(use, setting, port string, args []string) {
		if port = cmp.Or(config.Argument(args, "secure-port"), port); port != "0" {
			address := net.JoinHostPort(cmp.Or(config.Argument(args, "bind-address"), "127.0.0.1"), port)
			list = append(list, host.Port{Network: "tcp", Address: address, Use: use, Change: "--" + setting + " secure-port=NUMBER"})
		}
	}
	if roles.controllers {
		health("the health of the controllers", "kube-controller-manager-arg", "10257", cfg.Server.KubeControllerManagerArgs)
	}
	if roles.scheduler {
		health("the health of the scheduler", "kube-scheduler-arg", "10259", cfg.Server.KubeSchedulerArgs)
	}
	if roles.objects == choice.Member {
		list = append(list,
			host.Port{Network: "tcp", Address: net.JoinHostPort(node.IPs[0].String(), "2380"), Use: "the other servers' etcd", Remote: true},
			host.Port{Network: "tcp", Address: "127.0.0.1:2379", Use: "etcd's clients"})
	}
	if !roles.node {
		return list
	}
	return slices.Concat(list, agent.Ports(cfg.Node, node.IPs), agent.ClusterPorts(cfg.Cluster))
}

// check returns everything that would keep a server from starting and can be known
// before: faults in arguments, and ports that other processes have.
func check(ctx context.Context, cfg *config.Config, node host.Node) error {
	return errors.Join(CheckArguments(cfg), checkVIP(cfg.Server.VIP, node), host.CheckPorts(ctx, Ports(cfg, node)))
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
