package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/adopt"
	"github.com/kedge-dev/kedge/internal/base/config"
)

func adoptCommand() *cli.Command {
	return &cli.Command{
		Name:  "adopt",
		Usage: "on a host of another distribution: take its cluster over",
		Subcommands: []*cli.Command{{
			Name: "k3s",
			Usage: "make a kedge server of a k3s server that is stopped (k3s-killall.sh): objects, authorities, token, images and volumes. " +
				"k3s's files stay as they are, so that you can go back",
			Flags:  serverFlags(),
			Action: withConfig(adoptK3s),
		}},
	}
}

func adoptK3s(c *cli.Context, cfg *config.Config) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may adopt k3s's cluster: run this command with sudo")
	}
	report, err := adopt.Run(c.Context, adopt.Config{
		Settings: cfg,
		Root:     "/",
		Step:     func(what string) { fmt.Fprintln(c.App.ErrWriter, "adopt k3s:", what) },
	})
	if err != nil {
		return fmt.Errorf("adopt k3s: %w", err)
	}
	if err := report.Write(c.App.Writer); err != nil {
		return err
	}
	_, err = fmt.Fprint(c.App.Writer, report.Next())
	return err
}
