package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
)

const (
	nameFlag      = "name"
	retentionFlag = "snapshot-retention"
	// k3sRetentionFlag is k3s's name of it.
	k3sRetentionFlag = "etcd-snapshot-retention"
)

func snapshotCommand() *cli.Command {
	return &cli.Command{
		Name:    "snapshot",
		Aliases: []string{"etcd-snapshot"}, // k3s's name
		Usage:   "on a server: save and restore everything that the cluster's API stores",
		Subcommands: []*cli.Command{{
			Name:  "save",
			Usage: "save a snapshot and print its location. With the setting s3, also save it in S3",
			Flags: runningFlags([]cli.Flag{&cli.StringFlag{Name: nameFlag, Usage: "beginning of the name of the file", Value: snapshot.OnDemand}}),
			Action: byRunning(func(c *cli.Context) error {
				files, err := snapshot.AskSave(c.Context, local(), c.String(nameFlag))
				return printChanged(c, files, err)
			}),
			Before: noArguments,
		}, {
			Name:    "list",
			Aliases: []string{"ls", "l"},
			Usage:   "list snapshots. The server may be stopped",
			Flags:   serverFlags(formatFlag()),
			Action:  withConfig(listSnapshots),
		}, {
			Name:      "delete",
			Usage:     "delete snapshots, on this host and in S3",
			ArgsUsage: "NAME...",
			Flags:     runningFlags(nil),
			Before:    someArguments("the names of snapshots", "kedge snapshot list"),
			Action: byRunning(func(c *cli.Context) error {
				files, err := snapshot.AskDelete(c.Context, local(), c.Args().Slice())
				return printChanged(c, files, err)
			}),
		}, {
			Name:  "prune",
			Usage: "keep the newest snapshots of each name that this server saved, and delete the others, on this host and in S3",
			Flags: runningFlags([]cli.Flag{
				&cli.StringFlag{Name: nameFlag, Usage: "only snapshots of this name, such as on-demand or scheduled"},
			}, retentionFlag),
			Before: noArguments,
			Action: byRunning(pruneSnapshots, retentionFlag),
		}, {
			Name:      "restore",
			Usage:     "replace all objects of a stopped server by those of a snapshot. The old data are kept beside the new ones",
			ArgsUsage: "FILE|NAME",
			Flags:     serverFlags(),
			Action:    restoreSnapshot,
		}},
	}
}

// printChanged prints the files that were saved or deleted, also if there is an error.
func printChanged(c *cli.Context, files []snapshot.File, err error) error {
	for _, f := range files {
		fmt.Fprintln(c.App.Writer, f.Location)
	}
	return err
}

func pruneSnapshots(c *cli.Context) error {
	retention := 0
	if c.IsSet(retentionFlag) || c.IsSet(k3sRetentionFlag) {
		cfg, err := loadConfig(c)
		if err != nil {
			return err
		}
		retention = cfg.Server.Snapshots.Retention
	}
	files, err := snapshot.AskPrune(c.Context, local(), c.String(nameFlag), retention)
	return printChanged(c, files, err)
}

func listSnapshots(c *cli.Context, cfg *config.Config) error {
	files, err := snapshot.AskList(c.Context, local())
	if errors.Is(err, localapi.ErrNotRunning) || errors.Is(err, localapi.ErrNotReady) {
		files, err = choice.ListSnapshots(c.Context, cfg)
	}
	// What could be listed is shown, whatever else went wrong.
	return errors.Join(err, printSnapshots(c.App.Writer, c.String(outputFlag), files))
}

func printSnapshots(w io.Writer, format string, files []snapshot.File) error {
	if files == nil {
		files = []snapshot.File{}
	}
	return printAs(w, format, files, func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "NAME\tLOCATION\tSIZE\tCREATED\tERROR")
		for _, f := range files {
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", f.Name, f.Location, f.Size, f.Created.Format(time.RFC3339), f.Error)
		}
		return table.Flush()
	})
}

func restoreSnapshot(c *cli.Context) error {
	if c.NArg() != 1 {
		return fmt.Errorf("`kedge snapshot restore` takes one snapshot, got %d: give its name or its file. Run `kedge snapshot list` for the list", c.NArg())
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may restore a snapshot: run this command with sudo")
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return err
	}
	restored, err := choice.Restore(c.Context, cfg, c.Args().First())
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, restored.Advice())
	return nil
}
