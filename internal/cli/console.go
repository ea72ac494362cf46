package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/inspect/console"
	"github.com/kedge-dev/kedge/internal/inspect/flight"
)

// localPort is the value of a flag that takes a port of this machine, or 0 for one that is free.
type localPort uint16

// Set implements cli.Generic.
func (p *localPort) Set(text string) error {
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 {
		return errors.New("a port such as 8001, from 1 to 65535")
	}
	*p = localPort(number)
	return nil
}

// String implements cli.Generic.
func (p *localPort) String() string { return strconv.Itoa(int(*p)) }

func consoleCommand() *cli.Command {
	var port localPort
	return &cli.Command{
		Name:  "console",
		Usage: "show the cluster in a browser on this machine, until you press Ctrl-C",
		Description: "The page asks the API with the rights of the kubeconfig, like kubectl. It is at 127.0.0.1 only, and opens\n" +
			"nothing on a server. The link that kedge prints works once.",
		Flags: []cli.Flag{
			administrator(),
			&cli.StringFlag{Name: namespaceFlag, Aliases: []string{"n"}, Usage: "`NAMESPACE` to show to a user who may not list namespaces", DefaultText: "that of the kubeconfig"},
			&cli.GenericFlag{Name: "port", Usage: "`PORT` of the page on this machine", Value: &port, DefaultText: "one that is free"},
		},
		Before: noArguments,
		Action: func(c *cli.Context) error { return showConsole(c, port) },
	}
}

func showConsole(c *cli.Context, port localPort) error {
	cfg, namespace, err := userConfig(c)
	if err != nil {
		return err
	}
	clients, err := clientsOf(cfg)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port.String()))
	if err != nil {
		return fmt.Errorf("listen for the browser: %w. Give another --port, or leave it out", err)
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	core := clients.Kubernetes.CoreV1().RESTClient()
	page := console.New(console.Config{
		Clients: clients, Namespace: namespace, Cluster: core.Get().URL().Host, Log: logrus.WithField("component", "console"),
		Exec: console.NewExec(cfg, core),
		Recording: func(ctx context.Context, node string, since time.Duration) (*recording.Recording, error) {
			return flight.Ask(ctx, core, node, since)
		},
	})
	return page.Serve(ctx, listener, func(link string) {
		fmt.Fprintf(c.App.Writer, "Open this link in a browser on this machine. It works once:\n\n  %s\n\nPress Ctrl-C to end.\n", link)
	})
}
