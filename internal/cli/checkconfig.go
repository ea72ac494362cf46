package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/containerd/peers"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/node/dns"
)

func checkConfigCommand() *cli.Command {
	return &cli.Command{
		Name:   "check-config",
		Usage:  "check the configuration and this host: kernel, cgroups, ports, memory, disk and clock; status 1 if kedge cannot run",
		Flags:  serverFlags(),
		Action: withConfig(checkConfig),
	}
}

func checkConfig(c *cli.Context, cfg *config.Config) error {
	if _, err := registries.New(cfg.Node.PrivateRegistry, nil, nil); err != nil {
		return err
	}
	running, err := datadir.Dir(cfg.DataDir).Holder()
	if err != nil {
		return err
	}
	check := host.CheckConfig{DataDir: cfg.DataDir}
	if running == 0 {
		check.Ports = ports(cfg)
	} else {
		fmt.Fprintf(c.App.Writer, "kedge runs (process %d), so its ports are not tried.\n\n", running)
	}
	checks := host.CheckHost(c.Context, check)
	if err := printChecks(c.App.Writer, checks); err != nil {
		return fmt.Errorf("print checks: %w", err)
	}
	if host.Worst(checks) == host.Fail {
		return errors.New("kedge cannot run well here; see the lines that say fail")
	}
	return nil
}

func printChecks(w io.Writer, checks []host.Check) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESULT\tABOUT\tCHECK\tFOUND\tWHAT IT COSTS, OR WHAT TO DO")
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Result, c.Group, c.Name, c.Detail, c.Cost)
	}
	return table.Flush()
}

// ports are those a server listens on.
func ports(cfg *config.Config) []host.Port {
	list := []host.Port{
		{Network: "tcp", Address: net.JoinHostPort(cfg.Server.BindAddress, strconv.Itoa(cfg.Server.HTTPSListenPort)), Use: "API"},
		{Network: "tcp", Address: ":10250", Use: "kubelet"},
		{Network: "tcp", Address: ":" + strconv.Itoa(dns.Port), Use: "DNS of this node's pods"},
		{Network: "udp", Address: ":" + strconv.Itoa(dns.Port), Use: "DNS of this node's pods"},
		{Network: "tcp", Address: "127.0.0.1:10256", Use: "health of the service proxy"},
		{Network: "tcp", Address: "127.0.0.1:10257", Use: "health of the controllers"},
		{Network: "tcp", Address: "127.0.0.1:10259", Use: "health of the scheduler"},
	}
	if cfg.Cluster.FlannelBackend == "vxlan" {
		list = append(list, host.Port{Network: "udp", Address: ":8472", Use: "VXLAN between nodes"})
	}
	if cfg.Cluster.EmbeddedRegistry {
		list = append(list, host.Port{Network: "tcp", Address: ":" + strconv.Itoa(peers.Port), Use: "images for other nodes"})
	}
	if cfg.Server.ClusterInit || cfg.Agent.Server != "" {
		list = append(list,
			host.Port{Network: "tcp", Address: ":2380", Use: "etcd's members"},
			host.Port{Network: "tcp", Address: "127.0.0.1:2379", Use: "etcd's clients"})
	}
	return list
}
