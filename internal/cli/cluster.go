package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

// clusterTimeout limits how long a cluster may take to become ready.
const clusterTimeout = 10 * time.Minute

func clusterCommand() *cli.Command {
	return &cli.Command{
		Name:  "cluster",
		Usage: "make clusters on this host that stay until they are deleted, many beside each other",
		Subcommands: []*cli.Command{{
			Name:      "create",
			Usage:     "make a cluster, and wait until it is ready",
			ArgsUsage: "NAME",
			Flags: append(nodesFlags(),
				&cli.StringFlag{Name: configFlag, Aliases: []string{"c"}, Usage: "`FILE` with settings of kedge for every node of the cluster, as for kedge server"},
				progressFlag()),
			Action: onOne(createCluster, onClusters),
		}, {
			Name:    "list",
			Aliases: []string{"ls"},
			Usage:   "list the clusters of this host, also those of kedge run",
			Flags:   []cli.Flag{formatFlag()},
			Before:  noArguments,
			Action:  onClusters(listClusters),
		}, {
			Name:      "kubeconfig",
			Usage:     "print the kubeconfig of a cluster that runs",
			ArgsUsage: "NAME",
			Action:    onOne(printKubeconfig, onClusters),
		}, {
			Name:      "load-image",
			Usage:     "give all nodes of a cluster the images of archives, as written by docker save",
			ArgsUsage: "NAME FILE...",
			Action:    onClusters(loadImages),
		}, {
			Name:      "stop",
			Usage:     "end all processes of a cluster, and keep its data",
			ArgsUsage: "NAME",
			Action:    onOne(stopCluster, onClusters),
		}, {
			Name:      "start",
			Usage:     "start a cluster that was stopped, or that ran before this host was started again",
			ArgsUsage: "NAME",
			Flags:     []cli.Flag{progressFlag()},
			Action:    onOne(startCluster, onClusters),
		}, {
			Name:      "delete",
			Usage:     "end a cluster, and remove it with all its data",
			ArgsUsage: "NAME",
			Action:    onOne(deleteCluster, ownClusters),
		}},
	}
}

// onOne is the action of a command on one cluster, whose name is its only argument. of is whose clusters the command
// is for.
func onOne(do func(*cli.Context, clusters.Store) error, of func(func(*cli.Context, clusters.Store) error) cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.NArg() != 1 {
			return fmt.Errorf("`%s` needs one name of a cluster, got %d arguments. Run `sudo kedge cluster list` for the list", commandName(c), c.NArg())
		}
		if err := clusters.CheckName(c.Args().First()); err != nil {
			return err
		}
		return of(do)(c)
	}
}

// onClusters is the action of a command on the clusters of root.
func onClusters(do func(*cli.Context, clusters.Store) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := rootOnly("sudo " + commandName(c)); err != nil {
			return err
		}
		store, err := clusters.Default()
		if err != nil {
			return err
		}
		return do(c, store)
	}
}

// ownClusters is the action of a command on the clusters of the user who calls it. Users other than root have those
// of `kedge run --api-only --keep-on-failure`.
func ownClusters(do func(*cli.Context, clusters.Store) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		store, err := clusters.Default()
		if err != nil {
			return err
		}
		err = do(c, store)
		if errors.Is(err, clusters.ErrUnknown) {
			// It may be one of root's.
			err = cmp.Or(rootOnly("sudo "+commandName(c)), err)
		}
		return err
	}
}

func createCluster(c *cli.Context, store clusters.Store) error {
	cluster, err := newCluster(c)
	if err != nil {
		return err
	}
	cluster.Name = c.Args().First()
	if file := c.String(configFlag); file != "" {
		// A fault in the settings is better found here than in the log of a node.
		settings, sources, err := config.LoadFiles([]string{file}, nil)
		if err != nil {
			return err
		}
		if err := keeper.CheckConfig(settings, sources); err != nil {
			return err
		}
		text, err := datadir.ReadText(file)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		cluster.Config = string(text)
	}
	return launch(c, keeper.Job{Store: store, Cluster: cluster})
}

func startCluster(c *cli.Context, store clusters.Store) error {
	known, err := store.Find(c.Args().First())
	if err != nil {
		return err
	}
	if known.State != clusters.Stopped {
		fmt.Fprintf(c.App.ErrWriter, "kedge: the cluster %s runs already\n", known.Name)
		return nil
	}
	return launch(c, keeper.Job{Store: store, Cluster: known.Cluster, Existing: true})
}

// launch starts a keeper that stays, and waits until the cluster is ready.
func launch(c *cli.Context, job keeper.Job) error {
	progress, err := newProgress(c.App.ErrWriter, c.String(outputFlag))
	if err != nil {
		return err
	}
	process, err := keeper.Launch(job)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(c.Context, clusterTimeout, fmt.Errorf("the cluster was not ready within %s", clusterTimeout))
	defer cancel()
	ready, err := process.WaitReady(ctx, func(r keeper.Report) { progress.step(r.Step, time.Duration(r.Seconds*float64(time.Second))) })
	if err != nil {
		// The keeper's own error is this one.
		_ = process.Stop()
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted before the cluster was ready. Nothing new runs: run the command again")
		}
		return err
	}
	if err := process.Detach(); err != nil {
		return err
	}
	progress.note(fmt.Sprintf("cluster %s is ready at %s. To use it: sudo kedge cluster kubeconfig %s >kubeconfig; export KUBECONFIG=$PWD/kubeconfig", ready.Name, ready.API, ready.Name))
	return nil
}

// listedCluster is a line of `kedge cluster list`.
type listedCluster struct {
	Name      string         `json:"name"`
	State     clusters.State `json:"state"`
	Temporary bool           `json:"temporary"`
	Nodes     int            `json:"nodes"`
	Servers   int            `json:"servers"`
	API       string         `json:"api"`
	Published []string       `json:"published"`
	// Registry is where users push images, or empty.
	Registry string `json:"registry"`
}

func listClusters(c *cli.Context, store clusters.Store) error {
	known, err := store.List()
	if err != nil {
		return err
	}
	list := []listedCluster{} // JSON has [], not null
	for _, k := range known {
		line := listedCluster{k.Name, k.State, k.Temporary, k.Nodes, k.Servers, k.API, []string{}, ""}
		if k.Registry != 0 {
			line.Registry = fmt.Sprint("localhost:", k.Registry)
		}
		for _, port := range k.Published {
			line.Published = append(line.Published, port.String())
		}
		list = append(list, line)
	}
	return printAs(c.App.Writer, c.String(outputFlag), list, func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "NAME\tSTATE\tNODES\tSERVERS\tAPI\tPUBLISHED\tREGISTRY")
		for _, line := range list {
			fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", line.Name, line.State, line.Nodes, line.Servers, line.API, strings.Join(line.Published, ", "), line.Registry)
		}
		return table.Flush()
	})
}

// running returns a cluster that is ready.
func running(store clusters.Store, name string) (clusters.Known, error) {
	known, err := store.Find(name)
	if err != nil {
		return known, err
	}
	switch known.State {
	case clusters.Ready:
		return known, nil
	case clusters.Stopped:
		return known, fmt.Errorf("the cluster %s is stopped. Run `sudo kedge cluster start %s`", name, name)
	}
	return known, fmt.Errorf("the cluster %s is not ready yet. Run `sudo kedge cluster list` to see when it is", name)
}

func printKubeconfig(c *cli.Context, store clusters.Store) error {
	known, err := running(store, c.Args().First())
	if err != nil {
		return err
	}
	text, err := os.ReadFile(store.Kubeconfig(known.Name))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	_, err = c.App.Writer.Write(text)
	return err
}

func loadImages(c *cli.Context, store clusters.Store) error {
	if c.NArg() < 2 {
		return errors.New("`kedge cluster load-image` needs the name of a cluster and archives: give kedge cluster load-image NAME FILE")
	}
	known, err := running(store, c.Args().First())
	if err != nil {
		return err
	}
	names, err := keeper.LoadImages(c.Context, known, c.Args().Tail())
	for _, name := range names {
		fmt.Fprintln(c.App.Writer, name)
	}
	return err
}

func stopCluster(c *cli.Context, store clusters.Store) error {
	known, err := store.Find(c.Args().First())
	if err != nil {
		return err
	}
	if known.Temporary {
		return fmt.Errorf("the cluster %s is in memory, and cannot be stopped. Run `sudo kedge cluster delete %s` to remove it", known.Name, known.Name)
	}
	return keeper.End(c.Context, store, known)
}

func deleteCluster(c *cli.Context, store clusters.Store) error {
	known, err := store.Find(c.Args().First())
	if err != nil {
		return err
	}
	if err := keeper.End(c.Context, store, known); err != nil {
		return err
	}
	if known.Temporary {
		return nil // It went with its keeper.
	}
	held, err := store.Hold(known.Name)
	if errors.Is(err, clusters.ErrUnknown) {
		return nil // It was just starting, and went with its keeper.
	}
	if err != nil {
		return err
	}
	return held.Delete()
}
