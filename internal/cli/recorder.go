package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/inspect/flight"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// past is the value of a flag that takes how long before now something began.
type past time.Duration

// Set implements cli.Generic.
func (p *past) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > recording.Kept {
		return fmt.Errorf("a duration up to %.0fh, such as 30m or 3h", recording.Kept.Hours())
	}
	*p = past(d)
	return nil
}

// String implements cli.Generic.
func (p *past) String() string { return time.Duration(*p).String() }

func recorderCommand() *cli.Command {
	since := past(3 * time.Hour)
	return &cli.Command{
		Name:  "recorder",
		Usage: "show what the flight recorder of a node has recorded: curves of the last day, and moments such as starts, warnings and links that went down",
		Description: "Without --node, this command reads the files of this host, also if kedge does not run.\n" +
			"With --node, it asks the API with the rights of the kubeconfig: the user needs the right to get nodes/proxy.",
		Flags: runningFlags([]cli.Flag{
			&cli.GenericFlag{Name: "since", Usage: "`DURATION` before now, up to 24h", Value: &since},
			&cli.StringFlag{Name: "node", Usage: "`NODE` of the cluster, instead of this host"},
			administrator(),
			&cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FORMAT` of the output: table, json or csv. CSV has the curves only", Value: "table"},
		}),
		Before: noArguments,
		Action: func(c *cli.Context) error { return showRecording(c, time.Duration(since)) },
	}
}

func showRecording(c *cli.Context, since time.Duration) error {
	shown := flight.Flight{Node: c.String("node"), To: time.Now()}
	shown.From = shown.To.Add(-since)
	print, known := map[string]func() error{
		"table": func() error { return shown.Table(c.App.Writer) },
		"json":  func() error { return shown.JSON(c.App.Writer) },
		"csv":   func() error { return shown.CSV(c.App.Writer) },
	}[c.String(outputFlag)]
	if !known {
		return fmt.Errorf("unknown output format %q: use table, json or csv", c.String(outputFlag))
	}
	var err error
	if shown.Node == "" {
		shown.Recording, err = recordingHere(c, shown.From, shown.To)
	} else {
		var clients why.Clients
		if clients, _, err = asUser(c); err == nil {
			shown.Recording, err = flight.Ask(c.Context, clients.Kubernetes.CoreV1().RESTClient(), shown.Node, since)
		}
	}
	if err != nil {
		return err
	}
	return print()
}

// recordingHere reads the recording of this host.
func recordingHere(c *cli.Context, from, to time.Time) (*recording.Recording, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root may read the recording of this host: run this command with sudo, or give --node")
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return nil, err
	}
	return recording.Of(datadir.Dir(cfg.DataDir)).Read(from, to)
}
