package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/containerd"
)

func imageCommand() *cli.Command {
	return &cli.Command{
		Name:  "image",
		Usage: "import, list and export the images of this node",
		Subcommands: []*cli.Command{{
			Name:      "import",
			Usage:     "import images from archives as written by `docker save`, and pin them: only `kedge crictl rmi` removes them",
			ArgsUsage: "FILE|-...",
			Description: "An archive is an OCI or Docker one, as it is or compressed with gzip or zstd; - reads it from the standard input.\n" +
				"Pinned images are not removed when the disk gets full, as they may not be there to be pulled again.\n" +
				"Archives in the folder agent/images of the data directory are imported by kedge itself, and unpinned when they go.",
			Flags:  runningFlags(nil),
			Before: someArguments("archives, or - for the standard input", ""),
			Action: withImages(importImages),
		}, {
			Name:    "list",
			Aliases: []string{"ls"},
			Usage:   "list the images by their names",
			Flags:   runningFlags([]cli.Flag{formatFlag()}),
			Before:  noArguments,
			Action:  withImages(listImages),
		}, {
			Name:      "export",
			Usage:     "write images to one archive, which `kedge image import` reads on another node",
			ArgsUsage: "NAME...",
			Flags:     runningFlags([]cli.Flag{&cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FILE` to write (required). - is the standard output"}}),
			Before:    someArguments("the names of images", "kedge image list"),
			Action:    withImages(exportImages),
		}},
	}
}

// withImages is the action of a command on the images of the kedge that runs.
func withImages(do func(*cli.Context, *containerd.Images) error) cli.ActionFunc {
	return byRunning(func(c *cli.Context) error {
		if socket := runtimeSocket(); socket != datadir.ContainerdSocket {
			return fmt.Errorf("the images of this node are in your own container runtime at %s: use the commands of that runtime, or `kedge crictl`", socket)
		}
		images, err := containerd.OpenImages(datadir.ContainerdSocket)
		if err != nil {
			return err
		}
		defer images.Close()
		return do(c, images)
	})
}

func importImages(c *cli.Context, images *containerd.Images) error {
	for _, path := range c.Args().Slice() {
		file := os.Stdin
		if path != "-" {
			var err error
			if file, err = os.Open(path); err != nil {
				return fmt.Errorf("import images: %w", err)
			}
		}
		names, err := images.Import(c.Context, file)
		file.Close()
		if err != nil {
			return fmt.Errorf("import images of %s: %w", path, err)
		}
		for _, name := range names {
			fmt.Fprintln(c.App.Writer, name)
		}
	}
	return nil
}

func listImages(c *cli.Context, images *containerd.Images) error {
	list, err := images.List(c.Context)
	if err != nil {
		return err
	}
	return printImages(c.App.Writer, c.String(outputFlag), list)
}

func printImages(w io.Writer, format string, list []containerd.Image) error {
	if list == nil {
		list = []containerd.Image{} // JSON has [], not null
	}
	return printAs(w, format, list, func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "NAME\tDIGEST\tMB\tPINNED")
		for _, i := range list {
			fmt.Fprintf(table, "%s\t%.19s\t%.1f\t%t\n", i.Name, i.Digest, float64(i.Size)/1e6, i.Pinned)
		}
		return table.Flush()
	})
}

func exportImages(c *cli.Context, images *containerd.Images) (err error) {
	path := c.String(outputFlag)
	if path == "" {
		return errors.New("`kedge image export` needs a file to write: give --output FILE, or --output - for the standard output")
	}
	if path == "-" {
		return images.Export(c.Context, c.Args().Slice(), c.App.Writer)
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("export images: %w", err)
	}
	err = images.Export(c.Context, c.Args().Slice(), file)
	if closed := file.Close(); err == nil {
		err = closed
	}
	if info, failed := os.Lstat(path); err != nil && failed == nil && info.Mode().IsRegular() {
		os.Remove(path) // half an archive is of no use
	}
	return err
}
