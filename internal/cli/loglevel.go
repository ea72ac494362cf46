package cli

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/inspect/settings"
)

func logLevelCommand() *cli.Command {
	return &cli.Command{
		Name:      "log-level",
		Usage:     "show the log levels of the kedge that runs on this host, or change them until kedge restarts or reads its configuration again",
		ArgsUsage: "[LEVEL,COMPONENT=LEVEL...]",
		Action: func(c *cli.Context) error {
			var words []string
			for _, argument := range c.Args().Slice() {
				words = append(words, strings.Split(argument, ",")...)
			}
			now, err := settings.AskLevels(c.Context, local(), words)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.App.Writer, strings.Join(now, ","))
			return err
		},
	}
}
