package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "on a server: list the nodes that the cluster has admitted, show how they reach each other, and revoke a stolen node",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the registrations of nodes, until when their certificates are valid, and who has a tunnel to the server of this host",
			Flags:  runningFlags([]cli.Flag{administrator(), formatFlag()}),
			Before: noArguments,
			Action: listNodes,
		}, {
			Name:      "revoke",
			Usage:     "make all certificates of nodes invalid within seconds. Their Node objects stay, and their names are taken until `kubectl delete node`",
			ArgsUsage: "NAME...",
			Flags:     runningFlags([]cli.Flag{administrator()}),
			Before:    someArguments("the names of nodes", "kedge node list"),
			Action:    revokeNodes,
		}, nodeWays()},
	}
}

// listedNode is a line of `kedge node list`.
type listedNode struct {
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Joined    string   `json:"joined"`
	Addresses []string `json:"addresses,omitempty"`
	// CertificatesEnd is empty if an older kedge has signed the certificates.
	CertificatesEnd string `json:"certificatesEnd,omitempty"`
	// Tunnel says whether there is one to the server of this host; it is nil if kedge
	// does not run here.
	Tunnel *bool `json:"tunnel,omitempty"`
}

func listNodes(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	registrations, err := registration.List(c.Context, client)
	if err != nil {
		return err
	}
	report, err := status.Fetch(c.Context, local())
	if err != nil && !errors.Is(err, localapi.ErrNotRunning) && !errors.Is(err, localapi.ErrNotReady) {
		return err
	}
	nodes := []listedNode{}
	for _, r := range registrations {
		node := describeRegistration(r)
		if report != nil {
			open := slices.Contains(report.Tunnels, r.Node)
			node.Tunnel = &open
		}
		nodes = append(nodes, node)
	}
	return printAs(c.App.Writer, c.String(outputFlag), nodes, func(w io.Writer) error { return printNodes(w, nodes) })
}

func describeRegistration(r registration.Registration) listedNode {
	node := listedNode{Name: r.Node, Joined: r.Joined.Local().Format(time.DateTime), State: "registered"}
	switch {
	case !r.Revoked.IsZero():
		node.State = "revoked"
	case !r.Registered:
		node.State = "pending"
	}
	for _, ip := range r.Addresses {
		node.Addresses = append(node.Addresses, ip.String())
	}
	if !r.CertificatesEnd.IsZero() {
		node.CertificatesEnd = r.CertificatesEnd.Local().Format(time.DateTime)
	}
	return node
}

func printNodes(w io.Writer, nodes []listedNode) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tSTATE\tJOINED\tADDRESSES\tCERTIFICATES END\tTUNNEL TO THIS SERVER")
	for _, n := range nodes {
		tunnel := "unknown"
		if n.Tunnel != nil {
			tunnel = map[bool]string{true: "open", false: "none"}[*n.Tunnel]
		}
		end := cmp.Or(n.CertificatesEnd, "unknown")
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", n.Name, n.State, n.Joined, strings.Join(n.Addresses, ","), end, tunnel)
	}
	return table.Flush()
}

func revokeNodes(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	var faults []error
	for _, name := range c.Args().Slice() {
		if err := registration.Revoke(c.Context, client, name); err != nil {
			faults = append(faults, fmt.Errorf("revoke node %s: %w", name, err))
			continue
		}
		fmt.Fprintf(c.App.Writer, "Node %[1]s is revoked: its certificates are no longer accepted.\n"+
			"If a join token was stored on it, replace the token: kedge token rotate, or kedge token delete.\n"+
			"To have its pods started on other nodes, and to free its name: kubectl delete node %[1]s\n", name)
	}
	return errors.Join(faults...)
}
