package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
	"github.com/kedge-dev/kedge/internal/throwaway/rootless"
	"github.com/kedge-dev/kedge/internal/throwaway/session"
)

const (
	nodesFlag         = "nodes"
	serversFlag       = "servers"
	publishFlag       = "publish"
	imageFlag         = "image"
	manifestFlag      = "manifest"
	waitFlag          = "wait"
	timeoutFlag       = "timeout"
	keepOnFailureFlag = "keep-on-failure"
	logsFlag          = "logs"
	apiOnlyFlag       = "api-only"
	registryFlag      = "registry"
)

// nodesFlags are the flags of how large a cluster is.
func nodesFlags() []cli.Flag {
	nodes, servers := count(1), count(1)
	return []cli.Flag{
		&cli.GenericFlag{Name: nodesFlag, Usage: "how `MANY` nodes the cluster has", Value: &nodes, DefaultText: "1"},
		&cli.GenericFlag{Name: serversFlag, Usage: "how `MANY` of the nodes are servers", Value: &servers, DefaultText: "1"},
		&cli.StringSliceFlag{Name: publishFlag, Aliases: []string{"p"}, Usage: "`[ADDRESS:]HOST-PORT:NODE-PORT`: connections to a port of this host go to a port of the first node. Without an address only this host reaches the port. May be repeated"},
		&cli.StringFlag{Name: registryFlag, Usage: "`PORT` of localhost to which this user can push images, such as 5001. Pods get them as localhost:PORT/NAME (default: no registry)"},
	}
}

// progressFlag is the flag that newProgress reads.
func progressFlag() cli.Flag {
	return &cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FORMAT` of the progress on the standard error: text or json", Value: "text"}
}

func runCommand() *cli.Command {
	timeout := lifetime(5 * time.Minute)
	return &cli.Command{
		Name:      "run",
		Usage:     "run a command with a cluster of its own, which is removed when the command ends",
		ArgsUsage: "-- COMMAND...",
		Description: "The command gets the cluster's kubeconfig in the variable KUBECONFIG, and its exit status becomes that of kedge run. All of the cluster is in memory.\n" +
			"It has nothing in common with a kedge that runs as a service on this host, and it leaves nothing, however the command or kedge run ends.\n" +
			"For example: sudo kedge run --image app.tar --manifest deploy/ --wait -- go test ./e2e/...",
		Flags: append(nodesFlags(),
			&cli.BoolFlag{Name: apiOnlyFlag, Usage: "run only the API server, controllers and the scheduler, and no node: for tests of controllers. It needs no sudo where users may make user namespaces"},
			&cli.StringSliceFlag{Name: imageFlag, Usage: "`FILE` with images, as written by docker save, which all nodes get before the command starts. May be repeated"},
			&cli.StringSliceFlag{Name: manifestFlag, Usage: "`FILE` or folder with objects that are applied before the command starts. May be repeated"},
			&cli.BoolFlag{Name: waitFlag, Usage: "wait until the objects of --manifest are ready"},
			&cli.GenericFlag{Name: timeoutFlag, Usage: "how `LONG` everything may take until the command starts, such as 5m; 0 for no limit", Value: &timeout, DefaultText: "5m"},
			&cli.BoolFlag{Name: keepOnFailureFlag, Usage: "leave the cluster running if the command fails. kedge cluster delete removes it"},
			&cli.StringFlag{Name: logsFlag, Usage: "if the cluster or the command fails, write all logs, Events and objects to this `FOLDER`"},
			progressFlag()),
		Action: func(c *cli.Context) error {
			if err := someArguments("-- and the command that gets the cluster, as in kedge run -- kubectl get nodes", "")(c); err != nil {
				return err
			}
			options, err := runOptions(c)
			if err != nil {
				return err
			}
			status, err := session.Run(c.Context, options)
			if err != nil {
				return cli.Exit(err.Error(), max(status, 1))
			}
			if status != 0 {
				return cli.Exit("", status)
			}
			return nil
		},
	}
}

// runOptions reads the flags of `kedge run`.
func runOptions(c *cli.Context) (session.Options, error) {
	progress, err := newProgress(c.App.ErrWriter, c.String(outputFlag))
	if err != nil {
		return session.Options{}, err
	}
	cluster, err := newCluster(c)
	if err != nil {
		return session.Options{}, err
	}
	cluster.Temporary = true
	if c.Bool(apiOnlyFlag) {
		for _, flag := range []string{nodesFlag, serversFlag, publishFlag, registryFlag, imageFlag} {
			if c.IsSet(flag) {
				return session.Options{}, fmt.Errorf("--%s is about nodes, and with --%s there are none: leave one of them out", flag, apiOnlyFlag)
			}
		}
		cluster = clusters.Cluster{Temporary: true, APIOnly: true}
	}
	if c.Bool(waitFlag) && !c.IsSet(manifestFlag) {
		return session.Options{}, errors.New("--wait is for objects of --manifest: give --manifest FILE, or leave --wait out")
	}
	for _, flag := range []string{imageFlag, manifestFlag} {
		for _, file := range c.StringSlice(flag) {
			info, err := os.Stat(file)
			if err != nil {
				return session.Options{}, fmt.Errorf("read --%s: %w", flag, err)
			}
			if !info.IsDir() && !info.Mode().IsRegular() {
				return session.Options{}, fmt.Errorf("read --%s: %s is neither a file nor a folder, and can be read only once: write it to a file first", flag, file)
			}
		}
	}
	if os.Geteuid() != 0 && !cluster.APIOnly {
		if err := rootless.Prepare(); err != nil {
			return session.Options{}, err
		}
	}
	var images []string
	for _, file := range c.StringSlice(imageFlag) {
		path, err := filepath.Abs(file) // The keeper has another working folder.
		if err != nil {
			return session.Options{}, fmt.Errorf("read --%s: %w", imageFlag, err)
		}
		images = append(images, path)
	}
	store, err := clusters.Default()
	if err != nil {
		return session.Options{}, err
	}
	executable, err := os.Executable()
	if err != nil {
		return session.Options{}, fmt.Errorf("find executable: %w", err)
	}
	return session.Options{
		Store: store, Cluster: cluster, Images: images, Manifests: c.StringSlice(manifestFlag), Wait: c.Bool(waitFlag),
		Timeout: time.Duration(*c.Generic(timeoutFlag).(*lifetime)), KeepOnFailure: c.Bool(keepOnFailureFlag), Logs: c.String(logsFlag), Owner: session.User{ID: owner(), Group: ownerGroup()},
		Command: c.Args().Slice(), Executable: executable, Progress: progress.step, Note: progress.note,
	}, nil
}

// newCluster reads nodesFlags.
func newCluster(c *cli.Context) (clusters.Cluster, error) {
	cluster := clusters.Cluster{Nodes: int(*c.Generic(nodesFlag).(*count)), Servers: int(*c.Generic(serversFlag).(*count))}
	if !c.IsSet(nodesFlag) {
		cluster.Nodes = max(cluster.Nodes, cluster.Servers)
	}
	if cluster.Servers > cluster.Nodes {
		return cluster, fmt.Errorf("--servers=%d is more than --nodes=%d, and servers are nodes: give --nodes=%d or more", cluster.Servers, cluster.Nodes, cluster.Servers)
	}
	for _, text := range c.StringSlice(publishFlag) {
		published, err := clusters.ParsePublished(text)
		if err != nil {
			return cluster, err
		}
		cluster.Published = append(cluster.Published, published)
	}
	if text := c.String(registryFlag); text != "" {
		var err error
		if cluster.Registry, err = clusters.ParsePort(text); err != nil {
			return cluster, fmt.Errorf("--%s: %w", registryFlag, err)
		}
		cluster.Owner = owner()
	}
	return cluster, nil
}

// owner returns the ID of the user who called sudo, or of this user.
func owner() int { return behindSudo("SUDO_UID", os.Geteuid()) }

// ownerGroup returns the ID of that user's group.
func ownerGroup() int { return behindSudo("SUDO_GID", os.Getegid()) }

// behindSudo returns the ID in a variable that sudo sets for root, or else own.
func behindSudo(variable string, own int) int {
	if id, err := strconv.Atoi(os.Getenv(variable)); err == nil && id > 0 && os.Geteuid() == 0 {
		return id
	}
	return own
}

// rootOnly fails for everybody except root. command is what to run.
func rootOnly(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return fmt.Errorf("clusters of `kedge cluster create` belong to root: run `%s`", command)
}

// keeperCommand is what keeper.Launch runs.
func keeperCommand() *cli.Command {
	return &cli.Command{
		Name:   keeper.Command,
		Usage:  "keep a cluster of kedge run or kedge cluster. Only kedge itself calls it",
		Hidden: true,
		Before: noArguments,
		Action: func(c *cli.Context) error { return keeper.Main(c.Context, os.Stdin, os.Stdout) },
	}
}

// count is the value of a flag that takes a number of nodes.
type count int

// Set implements cli.Generic.
func (n *count) Set(text string) error {
	number, err := strconv.Atoi(text)
	if err != nil || number < 1 || number > clusters.MaxNodes {
		return fmt.Errorf("a number such as 3, from 1 to %d", clusters.MaxNodes)
	}
	*n = count(number)
	return nil
}

// String implements cli.Generic.
func (n *count) String() string { return strconv.Itoa(int(*n)) }
