package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/status"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show every component of the kedge that runs on this host; status 1 unless all are ready",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` of the output: table or json", Value: "table"},
		},
		Before: noArguments,
		Action: func(c *cli.Context) error {
			report, err := status.Fetch(c.Context, datadir.StatusSocket)
			if err != nil {
				return err
			}
			switch format := c.String("output"); format {
			case "table":
				err = printStatus(c.App.Writer, report, time.Now())
			case "json":
				encoder := json.NewEncoder(c.App.Writer)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(report)
			default:
				return fmt.Errorf("output %q is not known; it can be table or json", format)
			}
			if err != nil {
				return fmt.Errorf("print status: %w", err)
			}
			for _, s := range report.Components {
				if s.State != component.Ready {
					return cli.Exit("", 1)
				}
			}
			return nil
		},
	}
}

func printStatus(w io.Writer, report *status.Report, now time.Time) error {
	fmt.Fprintf(w, "kedge %s on node %s, process %d\n\n", report.Version, report.Node, report.PID)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tSTATE\tSINCE\tLAST ERROR")
	for _, s := range report.Components {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Name, s.State, now.Sub(s.Since).Truncate(time.Second), s.Error)
	}
	return table.Flush()
}
