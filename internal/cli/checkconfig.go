package cli

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/removal/install"
	"github.com/kedge-dev/kedge/internal/server"
)

func checkConfigCommand() *cli.Command {
	return &cli.Command{
		Name: "check-config",
		Usage: "check the configuration and this host: arguments, kernel, cgroups, ports, firewalls, memory, disk and clock. The exit status is 1 if kedge cannot run. " +
			"With --from, say what of an installation of k3s works, changes and cannot work. The exit status is then 2 if something changes, and 1 if something cannot work",
		Flags: serverFlags(
			&cli.StringFlag{Name: fromFlag, Usage: "`FOLDER` with an installation of k3s: the root of its host, or of a copy of its files"},
			&cli.StringFlag{Name: kubeconfigFlag, Usage: "with --from: the k3s cluster's kubeconfig, to look at its objects too"},
			formatFlag()),
		Before: noArguments,
		Action: func(c *cli.Context) error {
			if c.IsSet(fromFlag) {
				return checkK3s(c)
			}
			return withConfig(checkConfig)(c)
		},
	}
}

func checkConfig(c *cli.Context, cfg *config.Config) error {
	service, err := install.Look("/")
	if err != nil {
		return err
	}
	check, faults := whatToCheck(cfg, config.Role(service.Command))
	_, err = registries.New(cfg.Node.PrivateRegistry, nil, nil)
	faults = errors.Join(faults, err)
	if check.Kedge, err = datadir.Dir(cfg.DataDir).Holder(); err != nil {
		return err
	}
	for _, notice := range cfg.Notices {
		fmt.Fprintln(c.App.ErrWriter, notice)
	}
	checks := host.CheckHost(c.Context, check)
	if err := printAs(c.App.Writer, c.String(outputFlag), checks, func(w io.Writer) error { return printChecks(w, checks) }); err != nil {
		return fmt.Errorf("print checks: %w", err)
	}
	if host.Worst(checks) == host.Fail {
		faults = errors.Join(faults, errors.New("kedge cannot run well on this host: see the lines that begin with fail"))
	}
	return faults
}

// whatToCheck returns what a start of a server, or of an agent, needs of the host, and
// all faults in the arguments for upstream's programs.
func whatToCheck(cfg *config.Config, role config.Role) (check host.CheckConfig, faults error) {
	check = host.CheckConfig{DataDir: cfg.DataDir, PodCIDRs: cfg.Cluster.OwnPodCIDRs(), ServiceCIDRs: cfg.Cluster.ServiceCIDRs(),
		ResolvConf: agent.HostResolvConf(cfg.Node), ClusterDomain: cfg.Cluster.ClusterDomain}
	if role == config.AgentRole {
		node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
		if err != nil {
			return check, err
		}
		check.Ports = agent.Ports(cfg.Node, cfg.Cluster, node.IPs)
		cluster := cfg.Cluster
		cluster.DisableKubeProxy = true // whether the cluster has it, the agent learns when it joins
		return check, agent.CheckArguments(node.Name, cfg.Node, cluster)
	}
	resolved, err := server.Resolve(cfg)
	if err != nil {
		return check, err
	}
	check.Ports = resolved.Ports()
	return check, errors.Join(resolved.CheckArguments(), resolved.CheckAddresses())
}

func printChecks(w io.Writer, checks []host.Check) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESULT\tABOUT\tCHECK\tFOUND\tWHAT IT COSTS, OR WHAT TO DO")
	for _, c := range checks {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", c.Result, c.Group, c.Name, c.Detail, c.Cost)
	}
	return table.Flush()
}
